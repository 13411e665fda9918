"""hotlap: make PyTorch training fast, one proven lever at a time, without touching the script.

The map, lowest layer first; a folder imports only from those above it:

    records/      the nouns as data (Run, rank files): schema, read, write
    machine/      what this host is; the chip table
    chronometer/  clocks, events and hooks: runs a command and times its step
    planner/      arithmetic, no GPU: memory, time and cost of a training on a cluster
    report/       what people read
    cli/          one file a command; thin

`chronometer` is the only folder that touches a clock, and the only one that runs inside the user's
process; there it needs nothing but the standard library and the torch that it finds.
"""

__version__ = "0.1.0"
