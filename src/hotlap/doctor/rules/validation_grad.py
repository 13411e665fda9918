"""Validation keeps what backward would need: memory and time for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "validation_grad"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Calls of the model in evaluation mode, with gradients on, that no backward followed."""
    found = training.habits.of("evaluation")
    if found.get("n_without_backward", 0) < 2:
        return
    where = place(training.habits.site("evaluation"))
    yield Finding(
        NAME,
        "warning",
        "validation runs with gradients on",
        (f"{found['n_without_backward']} calls at {where} that no backward followed",),
        None,
        f"{where}: inside `with torch.inference_mode():`",
    )


RULE = training_rule(NAME, check)
