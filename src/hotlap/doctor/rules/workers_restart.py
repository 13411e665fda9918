"""Loader workers end with every epoch and are started anew.

The gain is that of a step without the starts that were measured; the first batches of new workers
are late as well, which is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "workers_restart"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `iter(loader)` of loaders whose workers do not stay."""
    calls = training.calls("iter(loader)")
    share = training.share_of(calls)
    if share < limits.least_call_share:
        return
    yield Finding(
        NAME,
        "advice",
        f"starting loader workers again for each epoch takes {percent(share)} of the training",
        (f"{sum(call.n for call in calls)} starts at {places([call.site for call in calls])}",),
        without(share),
        lever_cure(training, "persistent_workers"),
    )


RULE = training_rule(NAME, check)
