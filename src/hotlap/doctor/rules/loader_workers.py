"""The step waits for batches that the training process makes itself, sample by sample.

Worker processes make them beside it. The gain is that of a step that lasts as long as its own work,
or as long as all allocated CPUs need for the batch, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent, place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "loader_workers"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Loaders without workers, and a share of the step that waits for them."""
    share, workload = training.share("data"), training.workload
    own = [one for one in workload.loaders if not one.facts.get("is_iterable")]
    if share < limits.least_data_share or not own:
        return
    if any(one.facts.get("num_workers") for one in workload.loaders):
        return
    n_workers = max(1, workload.n_cpus)
    left = max(1.0 - share, share / n_workers)
    yield Finding(
        NAME,
        "warning",
        f"{percent(share)} of the step waits for batches that no worker makes",
        (
            f"DataLoader at {place(own[0].site)} has num_workers=0; "
            f"CPUs allocated: {workload.n_cpus}",
        ),
        1.0 / left,
        lever_cure(training, "workers"),
    )


RULE = training_rule(NAME, check)
