"""A good part of the step is neither data nor model nor optimizer: other code of the loop.

The gain is that of a step without it. What other rules have found there is not counted again.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "loop_overhead"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The rest of the step, less the calls that were timed one by one."""
    known = training.share_of(call for call in training.habits.calls if call.in_training)
    share = training.share("other") - known - _in_kernels(case.kernels, limits)
    if share < limits.least_other_share:
        return
    if training.workload.waits_for_host and share * training.step.mean < limits.least_other_s:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is other code of the loop",
        ("between the optimizer and the next batch, or between batch and model",),
        without(share),
        "look at what the loop does beside training: metrics, logging, copies, plots",
    )


def _in_kernels(kernels: Kernels | None, limits: Thresholds) -> float:
    """The part of the step that the rules on copies and on one operation have found."""
    if kernels is None or not kernels.is_on_device:
        return 0.0
    dominant = kernels.dominant(limits.least_dominant_share)
    copied = kernels.share(kernels.seconds("copy"))
    return (kernels.share(dominant.seconds) if dominant else 0.0) + (
        copied if copied >= limits.least_copy_share else 0.0
    )


RULE = training_rule(NAME, check)
