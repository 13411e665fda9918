"""Printing takes a good part of the step: figures are formatted, or a terminal is slow.

The gain is that of a step without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, place, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "prints"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `print`."""
    calls = training.calls("print")
    share = training.share_of(calls)
    if share < limits.least_call_share:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is printing",
        (f"{training.per_step(calls):.3g} a step at {places([call.site for call in calls])}",),
        without(share),
        f"{place(calls[0].site)}: print every hundredth step",
    )


RULE = training_rule(NAME, check)
