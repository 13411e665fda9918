"""The step waits for batches although workers make them, and CPUs are left to have more workers.

With w workers the loader gives one batch every so often; with as many as there are CPUs it gives
that many times more. The gain is that of the step then, or of one that no longer waits.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "workers_few"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Loaders with fewer workers than allocated CPUs, and a share of the step that waits."""
    share, workload = training.share("data"), training.workload
    n_workers = max((one.facts.get("num_workers") or 0 for one in workload.loaders), default=0)
    n_cpus = workload.n_cpus // (len(training.run.ranks) or 1)
    if share < limits.least_data_share or not 0 < n_workers < n_cpus:
        return
    yield Finding(
        NAME,
        "warning",
        f"{percent(share)} of the step waits for batches of {n_of(n_workers, 'worker')}",
        (f"{n_cpus} CPUs are allocated for each rank",),
        1.0 / max(1.0 - share, n_workers / n_cpus),
        lever_cure(training, "workers", str(n_cpus)),
    )


RULE = training_rule(NAME, check)
