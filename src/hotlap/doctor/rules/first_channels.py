"""Images of three channels do not fit tensor cores; a fourth channel of zeros does.

The gain is what that usually saves of forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "first_channels"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """RGB images into a convolution on a GPU, in half precision."""
    decision = BY_NAME["four_channels"].applies(training.workload)
    autocast = training.habits.of("settings").get("autocast")
    if not decision.yes or autocast is None:
        return
    yield Finding(
        NAME,
        "note",
        "the first convolution has three input channels",
        (decision.reason,),
        lever_gain(training, "four_channels"),
        lever_cure(training, "four_channels"),
    )


RULE = training_rule(NAME, check)
