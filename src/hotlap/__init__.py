"""hotlap: make PyTorch training fast, one proven lever at a time, without touching the script.

The map, lowest layer first; a folder imports only from those above it:

    records/      the nouns as data (Run, rank files): schema, read, write
    machine/      System, Software, Stack; the chip table; ceilings, measured in child processes
    chronometer/  clocks, events and hooks: runs a command and times its step
    levers/       one file a lever: what can be changed to make the step faster
    doctor/       rules, one file each: what is set wrong, what it costs, what mends it
    planner/      arithmetic, no GPU: memory, time and cost of a training on a cluster
    tuner/        trials in clean processes, the ladder, the guard
    data/         sources of batches, and their way to the device
    distributed/  launch, mesh, and what cuts a model over ranks
    models/       resnet, vit, gpt
    trainer/      the reference trainer
    slurm/        clusters, job scripts, submit, queue, logs, requeue
    report/       what people read
    cli/          one file a command; thin

`chronometer` is the only folder that times a training, and the only one that runs inside the user's
process; there it needs nothing but the standard library and the torch that it finds.
"""

__version__ = "0.1.0"
