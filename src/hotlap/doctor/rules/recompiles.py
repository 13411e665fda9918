"""The model is compiled again and again, for shapes or values that it was not compiled for."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import times

NAME = "recompiles"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Frames that torch compiled once more, with its reason."""
    compiled = training.habits.of("compiled")
    n = compiled.get("n_again", 0)
    if n < limits.least_recompiles:
        return
    reasons = [str(reason).splitlines()[0] for *_, reason in compiled.get("again", ())]
    yield Finding(
        NAME,
        "advice",
        f"the model was compiled {times(n)} more, which took {compiled.get('again_s', 0.0):.1f} s",
        tuple(dict.fromkeys(reasons))[:3],
        None,
        "inputs of one shape (drop_last=True, padding to few lengths), or "
        "torch.compile(model, dynamic=True)",
    )


RULE = training_rule(NAME, check)
