"""Programs that look at the machine in a process of their own.

They may load torch, and they may die of it: an instruction that the CPU lacks, a driver that hangs.
The launcher starts them through `machine/child.py` and keeps what they told until then. They need
nothing but the standard library and the torch that is there.

instructions.py   runs one instruction of each class that x86 CPUs advertise
nvml.py           what NVIDIA's driver tells of its GPUs
torch_facts.py    what torch is, how it was built, what it sees
torch_ceilings.py matrix products, memory, transfers, launches, measured with torch
jpeg.py           JPEG images decoded a second on one core
"""
