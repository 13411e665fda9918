"""Backward runs inside autocast, where it is not meant to be: types are chosen in forward."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "backward_in_autocast"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Backwards that began with autocast on."""
    if not training.habits.of("backward").get("n_in_autocast"):
        return
    where = place(training.habits.site("backward"))
    yield Finding(
        NAME,
        "advice",
        "backward is called inside autocast",
        (f"at {where}",),
        None,
        f"{where}: end the autocast block behind the loss",
    )


RULE = training_rule(NAME, check)
