"""Torch splits operations into more threads than there are CPUs allocated: they wait in turn.

The count that matters is what Slurm, the affinity mask and the cgroup leave, not the node's.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "threads_too_many"
VARIABLE = "OMP_NUM_THREADS"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """More threads than CPUs."""
    n_threads = case.machine.stack.n_threads
    n_cpus = case.machine.stack.n_cpus_allocated
    if n_threads is None or n_cpus is None or n_threads <= n_cpus:
        return
    bounds = case.machine.system.cpu.bounds
    yield Finding(
        NAME,
        "warning",
        f"torch uses {n_threads} threads on {n_cpus} allocated CPUs",
        (
            f"the machine has {case.machine.system.cpu.n_cpus}; "
            + ", ".join(f"{name} leaves {n}" for name, n in bounds.items()),
            f"{VARIABLE} is {case.environment.get(VARIABLE, 'not set')}",
        ),
        None,
        f"set {VARIABLE}={n_cpus} (lever threads)",
    )


RULE = Rule(NAME, check)
