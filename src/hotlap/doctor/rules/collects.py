"""The loop has Python look for garbage in every step.

The gain is that of a step without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, place, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "collects"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `gc.collect`."""
    calls = training.calls("gc.collect")
    share = training.share_of(calls)
    if share < limits.least_call_share or training.per_step(calls) < limits.least_habit_per_step:
        return
    yield Finding(
        NAME,
        "warning",
        f"{percent(share)} of the step looks for garbage",
        (f"{training.per_step(calls):.3g} a step at {places([call.site for call in calls])}",),
        without(share),
        f"{place(calls[0].site)}: take gc.collect() out of the loop",
    )


RULE = training_rule(NAME, check)
