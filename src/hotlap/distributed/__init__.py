"""Several processes that train as one.

launch.py       how this process was started (srun, torchrun, mpirun, alone), and how it joins
slurm_step.py   what Slurm's variables say about a step of srun's
variables.py    launchers' variables, read strictly
collectives.py  `python -m …`: what ranks can say to each other, checked and timed
between_ranks.py  the same in processes of their own, for the doctor
exchanges.py    the operations, with numbers whose result is known beforehand
mesh.py         how ranks are arranged, and which of them share what
parallelise.py  a model over the ranks of a mesh: tensor parallel, sharded, replicated
watch.py        a rank that stands still ends the job, and is named
judge.py        which rank the others wait for
zero.py         ZeRO-1: the optimizer state over replicas
batchnorm.py    batch norms over the batch of all ranks
pipeline.py     its layers over ranks, with micro-batches under way in all of them
"""
