"""From the laptop to the cluster.

In a notebook, `hotlap.slurm.submit(...)`, `queue()` and `logs()`: see notebook.py. The rest:

profile.py       a cluster's TOML file, read strictly; profiles/ holds those of the package
profile_text.py  a profile as key and value, and as text
catalogue.py     which clusters are known
here.py          which one is meant
programs.py      Slurm's own programs, and one sentence where they are not there
forms.py         how Slurm writes times, limits and records
discover.py      a profile from the live cluster
check.py         how far a profile agrees with it
rights.py        which accounts and QoS a user has
resources.py     nodes, tasks, cores, partition, QoS and account from 'N GPUs for T hours'
build.py         requests of jobs from what a user wrote
quoting.py       words that others chose, in a job's script
script.py        the script of a job, a pure function of its request
requeue.py       the part of it that lets a training come back
send.py          submit, and when it would start
own_jobs.py      the queue
states.py        Slurm's states and reasons in words
memory.py        what slurmctld remembers of a job
find.py          which jobs a user means, and where they write
follow.py        what they print
efficiency.py    what a job made of what it had
"""

from hotlap.slurm.notebook import logs, queue, submit

__all__ = ["logs", "queue", "submit"]
