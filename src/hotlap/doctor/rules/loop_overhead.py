"""A good part of the step is neither data nor model nor optimizer: other code of the loop.

The gain is that of a step without it. What other rules have found there is not counted again.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "loop_overhead"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The rest of the step, less the calls that were timed one by one."""
    known = training.share_of(call for call in training.habits.calls if call.in_training)
    share = training.share("other") - known
    if share < limits.least_other_share:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is other code of the loop",
        ("between the optimizer and the next batch, or between batch and model",),
        without(share),
        "look at what the loop does beside training: metrics, logging, copies, plots",
    )


RULE = training_rule(NAME, check)
