"""The model trains in evaluation mode: dropout does nothing, norms learn no statistics."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.model import has_modes
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "trains_in_eval"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Calls in evaluation mode that a backward followed, of a model to which it matters."""
    found = training.habits.of("evaluation")
    n_calls = found.get("n_with_backward", 0)
    if not n_calls or n_calls < limits.least_per_step * training.habits.n_steps:
        return
    if not has_modes(training):
        return
    where = place(training.habits.site("evaluation"))
    yield Finding(
        NAME,
        "warning",
        "the model trains in evaluation mode",
        (f"{n_calls} of its calls, at {where}; it has dropout or batch norms",),
        None,
        "model.train() at the begin of each epoch, after each validation",
    )


RULE = training_rule(NAME, check)
