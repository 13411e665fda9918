"""What slurmctld remembers of a job: it is asked first, for it knows the latest, and forgets."""

from __future__ import annotations

from hotlap.errors import UsageError
from hotlap.slurm import programs
from hotlap.slurm.forms import fields

UNKNOWN = "Invalid job id"
"""What it says of a job that it does not know, or no longer."""


def remembered(number: str) -> list[dict[str, str]]:
    """The records of a job, one for each task of an array; none where it knows no such job.

    A controller that does not answer is an error: it says nothing of the job.
    """
    done = programs.attempt(["scontrol", "--oneliner", "show", "job", number])
    if done.returncode == 0:
        return [fields(line) for line in done.stdout.splitlines() if line.strip()]
    if UNKNOWN in done.stderr:
        return []
    raise UsageError(programs.complaint(done))
