"""DDP looks for unused parameters in every step, and there are none."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "find_unused"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The argument, and parameters without a gradient."""
    ddp, updates = training.habits.of("ddp"), training.habits.of("updates")
    if not ddp.get("find_unused_parameters") or updates.get("n_without_gradient", 1):
        return
    where = place(training.habits.site("ddp"))
    yield Finding(
        NAME,
        "advice",
        "find_unused_parameters is set, and all parameters are used",
        (f"all {updates.get('n_parameters')} had a gradient in the first update; {where}",),
        None,
        f"{where}: without find_unused_parameters",
    )


RULE = training_rule(NAME, check)
