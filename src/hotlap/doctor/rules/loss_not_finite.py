"""The loss is no number any more: the steps after that train nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "loss_not_finite"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The losses of the run."""
    losses = enumerate(training.run.loss, 1)
    bad = [(i, loss) for i, loss in losses if loss is not None and not math.isfinite(loss)]
    if not bad:
        return
    yield Finding(
        NAME,
        "error",
        f"the loss of step {bad[0][0]} is {bad[0][1]}",
        (f"losses that are not finite: {len(bad)} of {len(training.run.loss)}",),
        None,
        "a smaller learning rate, warm-up, clipped gradients; fp32 to see whether precision is it",
    )


RULE = training_rule(NAME, check)
