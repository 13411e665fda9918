"""A network of depthwise convolutions moves many bytes for each operation: bandwidth limits it."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "depthwise"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Convolutions with a group for each channel."""
    convolutions = [o for o in training.habits.layers if o["kind"] == "Conv2d"]
    deep = [o for o in convolutions if o["sizes"]["groups"] == o["sizes"]["in_channels"] > 1]
    if not convolutions or len(deep) < limits.least_depthwise * len(convolutions):
        return
    yield Finding(
        NAME,
        "note",
        f"{len(deep)} of {len(convolutions)} convolutions are depthwise",
        ("they have few operations for each byte: memory bandwidth limits them, and not products",),
        None,
        "a network with dense or grouped convolutions is often faster at the same accuracy",
    )


RULE = training_rule(NAME, check)
