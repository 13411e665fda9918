"""The command ended in order, and no step of a training was measured."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "no_step"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A Run without a step."""
    run = case.run
    if run is None or run.step_s is not None or run.status not in ("ok", "cut"):
        return
    is_short = bool(run.steps.warmup)
    yield Finding(
        NAME,
        "warning",
        "no training step of the command was measured",
        (case.what_was_seen,),
        None,
        "let it make more steps, or say --warmup 1"
        if is_short
        else "give the command that trains; it has to import torch and make steps",
    )


RULE = Rule(NAME, check, needs=("run",))
