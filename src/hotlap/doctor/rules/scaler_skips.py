"""Many updates are skipped because scaled gradients overflow: their work is lost.

The gain is that of a training in which every step counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "scaler_skips"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Scaled updates that were asked for, and those that were made."""
    updates = training.habits.of("updates")
    n_asked, n_skipped = updates.get("n_scaled", 0), updates.get("n_skipped", 0)
    if n_asked < limits.least_scaled or n_skipped < limits.most_skipped * n_asked:
        return
    yield Finding(
        NAME,
        "warning",
        f"{n_skipped} of {n_asked} updates were skipped by the gradient scaler",
        ("their gradients were not finite",),
        n_asked / (n_asked - n_skipped) if n_skipped < n_asked else None,
        "bf16 instead of fp16; else look for what overflows, or a smaller init_scale",
    )


RULE = training_rule(NAME, check)
