"""The GPU does a small part of the products that it could do in this time."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "low_mfu"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Model FLOPs against the chip's rate."""
    mfu = training.run.flops.mfu
    if mfu is None or not training.is_on_gpu or mfu >= limits.low_mfu:
        return
    yield Finding(
        NAME,
        "note",
        f"the model's products take {100 * mfu:.1f} % of the GPU's 16-bit rate",
        ("what holds the step back is in the other findings, or in `hotlap profile`",),
        None,
        "`hotlap tune` tries what may help, one lever after the other",
    )


RULE = training_rule(NAME, check)
