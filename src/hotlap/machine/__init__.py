"""What this machine is, whether its software fits it, and what it can really do.

probe.py          the whole Machine; what cannot be looked at is a note
host.py           CPUs and memory as this process may use them
gpus.py cpu.py isa.py memory.py storage.py network.py container.py scheduler.py   the System
software.py environment.py    the Software
stack.py known_bad.py         the Stack: one against the other
chips.py          the table of chips with their vendors' peaks
ceilings.py ceiling_cache.py peaks.py    what was measured, kept, and used for MFU
child.py children/            programs that look in a process of their own, for they may die
"""

from hotlap.machine.chips import CHIPS, Chip, find_chip
from hotlap.machine.host import Host, describe_host

__all__ = ["CHIPS", "Chip", "Host", "describe_host", "find_chip"]
