"""Batches are copied to the GPU from memory that it cannot read by itself.

The gain is what pinned memory usually saves of the copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, lever_gain, percent, places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "pageable_copies"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Loaders whose batches are not pinned, and time that goes into copies."""
    pageable = [o for o in training.workload.loaders if not o.facts.get("pin_memory")]
    share = training.share("transfer")
    if not training.is_on_gpu or not pageable or share < limits.least_transfer_share:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step copies batches from memory that is not pinned",
        (f"DataLoader at {places([one.site for one in pageable])}",),
        lever_gain(training, "pin_memory"),
        lever_cure(training, "pin_memory"),
    )


RULE = training_rule(NAME, check)
