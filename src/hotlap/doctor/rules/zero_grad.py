"""Gradients are filled with zeros and added to, instead of being made anew.

The gain is that of a step without the filling, which writes each gradient once, and without the
adding in backward, which reads two values and writes one for each.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "zero_grad"
ADDED = 3
"""Bytes that adding moves, for each that filling does."""


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Calls of `zero_grad(set_to_none=False)` in the loop."""
    calls = training.calls("zero_grad")
    if training.per_step(calls) < limits.least_per_step:
        return
    yield Finding(
        NAME,
        "advice",
        "gradients are filled with zeros and added to",
        (f"at {places([call.site for call in calls])}",),
        without((1 + ADDED) * training.share_of(calls)),
        f"{places([call.site for call in calls])}: zero_grad(), whose default is None",
    )


RULE = training_rule(NAME, check)
