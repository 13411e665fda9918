"""What this machine is: the table of chips with their vendors' peaks, and a probe of the host."""

from hotlap.machine.chips import CHIPS, Chip, find_chip
from hotlap.machine.host import Host, describe_host

__all__ = ["CHIPS", "Chip", "Host", "describe_host", "find_chip"]
