"""cuDNN chooses its convolutions by a rule; for inputs of one size it could time them.

The gain is what that usually saves of forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "cudnn_benchmark"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Convolutions on a GPU, inputs of few sizes, and the flag off."""
    decision = BY_NAME["cudnn_benchmark"].applies(training.workload)
    if not decision.yes or len(training.habits.shapes) > limits.few_shapes:
        return
    yield Finding(
        NAME,
        "advice",
        "convolutions of one size are not timed by cuDNN",
        (decision.reason,),
        lever_gain(training, "cudnn_benchmark"),
        lever_cure(training, "cudnn_benchmark"),
    )


RULE = training_rule(NAME, check)
