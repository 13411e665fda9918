"""Too few CPUs are allocated for the GPUs: one launches kernels, none is left to load data."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "cpus_per_gpu"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Allocated CPUs over the GPUs that they serve."""
    cpu = case.machine.system.cpu
    if not case.gpus or cpu.n_allocated is None:
        return
    least = limits.least_cpus_per_gpu
    if cpu.n_allocated >= least * case.n_gpus:
        return
    scheduler = case.machine.system.scheduler
    is_slurm = scheduler is not None and scheduler.name == "Slurm"
    n_cpus = "1 CPU" if cpu.n_allocated == 1 else f"{cpu.n_allocated} CPUs"
    yield Finding(
        NAME,
        "warning",
        f"{n_cpus} for {case.n_gpus} GPU{'s' if case.n_gpus > 1 else ''}",
        (
            f"the machine has {cpu.n_cpus}; "
            + ", ".join(f"{name} leaves {n}" for name, n in cpu.bounds.items()),
        ),
        None,
        f"ask for --cpus-per-task={least * case.n_gpus} or more"
        if is_slurm
        else f"allocate at least {least} CPUs a GPU",
    )


RULE = Rule(NAME, check)
