"""Convolutions in torch's default memory order; kernels want the channels innermost.

The gain is what that usually saves of forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain
from hotlap.doctor.model import is_channels_first
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "channels_last"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Several convolutions, a step that is spent in them, and the default order."""
    if not is_channels_first(training, limits):
        return
    n_convolutions = training.workload.n_modules("Conv2d", "ConvTranspose2d")
    yield Finding(
        NAME,
        "advice" if training.is_on_gpu else "note",
        f"{n_convolutions} convolutions are not channels last",
        (BY_NAME["channels_last"].applies(training.workload).reason,),
        lever_gain(training, "channels_last"),
        lever_cure(training, "channels_last"),
    )


RULE = training_rule(NAME, check)
