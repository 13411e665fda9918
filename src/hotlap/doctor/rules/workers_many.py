"""More loader workers than the allocated CPUs can run: they take time from each other and memory.

Some more than CPUs pay where workers wait for a disk or a network; many more do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "workers_many"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Workers of one loader over the CPUs of its rank."""
    n_cpus = max(1, training.workload.n_cpus // (len(training.run.ranks) or 1))
    for one in training.workload.loaders:
        n_workers = one.facts.get("num_workers") or 0
        if n_workers <= limits.most_workers_per_cpu * n_cpus:
            continue
        yield Finding(
            NAME,
            "advice",
            f"{n_workers} loader workers on {n_of(n_cpus, 'CPU')}",
            (f"DataLoader at {place(one.site)}",),
            None,
            f"{place(one.site)}: num_workers={n_cpus}, or a job with more CPUs",
        )


RULE = training_rule(NAME, check)
