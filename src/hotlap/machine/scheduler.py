"""The job of a batch system that this process belongs to, as its variables tell."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hotlap.machine.files import positive
from hotlap.records.system import Scheduler

_OTHERS = {"PBS_JOBID": "PBS", "LSB_JOBID": "LSF", "FLUX_JOB_ID": "Flux", "OAR_JOB_ID": "OAR"}


def find_scheduler(environ: Mapping[str, str] = os.environ) -> Scheduler | None:
    """The job; None outside of one. Of systems other than Slurm only name and number are known."""
    if "SLURM_JOB_ID" in environ:
        return Scheduler(
            name="Slurm",
            job_id=environ["SLURM_JOB_ID"],
            n_nodes=positive(environ.get("SLURM_JOB_NUM_NODES")),
            n_tasks=positive(environ.get("SLURM_NTASKS")),
            n_cpus_per_task=positive(environ.get("SLURM_CPUS_PER_TASK")),
            partition=environ.get("SLURM_JOB_PARTITION"),
        )
    for variable, name in _OTHERS.items():
        if variable in environ:
            return Scheduler(name, environ[variable], None, None, None, None)
    return None
