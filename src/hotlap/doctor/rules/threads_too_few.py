"""One thread where the CPU trains and several are allocated.

Launchers of ranks set one thread, which is right for ranks on GPUs and for as many ranks as CPUs.
The gain is the most that more threads can bring: as many times as there are CPUs for this rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.machine.files import positive
from hotlap.records.finding import Finding

NAME = "threads_too_few"
VARIABLE = "OMP_NUM_THREADS"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """One thread, no GPU, several CPUs for each rank."""
    n_threads = case.machine.stack.n_threads
    n_cpus = case.machine.stack.n_cpus_allocated
    if n_threads != 1 or n_cpus is None or case.gpus:
        return
    n_each = n_cpus // (positive(case.environment.get("LOCAL_WORLD_SIZE")) or 1)
    if n_each < limits.least_cpus_for_threads:
        return
    yield Finding(
        NAME,
        "warning",
        f"torch uses one thread of the {n_each} CPUs that it may have",
        (f"{VARIABLE} is {case.environment.get(VARIABLE, 'not set')}",),
        float(n_each),
        f"set {VARIABLE}={n_each} (lever threads)",
    )


RULE = Rule(NAME, check)
