"""Checkpoints or copies of the model are made so often that they take a good part of the training.

The gain is that of a step without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, place, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "saves"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `torch.save` and `copy.deepcopy`, where they are called often."""
    calls = training.calls("torch.save", "copy.deepcopy")
    share = training.share_of(calls)
    if share < limits.least_call_share or training.per_step(calls) < limits.least_habit_per_step:
        return
    yield Finding(
        NAME,
        "warning",
        f"{percent(share)} of the step saves or copies the model",
        (f"{training.per_step(calls):.3g} a step at {places([call.site for call in calls])}",),
        without(share),
        f"{place(calls[0].site)}: every some minutes, in a thread of its own where it takes long",
    )


RULE = training_rule(NAME, check)
