"""The model computes in fp16 without a gradient scaler: small gradients become zero."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "fp16_unscaled"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """fp16 autocast and no scaled update."""
    dtype = training.habits.of("settings").get("autocast")
    if dtype != "float16" or training.habits.of("updates").get("n_scaled"):
        return
    yield Finding(
        NAME,
        "warning",
        "fp16 is used without a gradient scaler",
        ("gradients below 6e-8 become zero in fp16",),
        None,
        "bf16 instead, which needs none; or torch.amp.GradScaler around backward and step",
    )


RULE = training_rule(NAME, check)
