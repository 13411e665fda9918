"""A tensor is made of a list of numpy arrays, which torch reads number by number.

The gain is that of a step without these calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "array_lists"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `torch.tensor` of such lists."""
    calls = training.calls("torch.tensor", "torch.as_tensor")
    share = training.share_of(calls)
    if share < limits.least_call_share:
        return
    sites = [call.site for call in calls]
    yield Finding(
        NAME,
        "warning",
        f"{percent(share)} of the step turns lists of arrays into tensors",
        (f"{training.per_step(calls):.3g} calls a step at {places(sites)}",),
        without(share),
        f"{places(sites)}: torch.from_numpy(numpy.stack(arrays))",
    )


RULE = training_rule(NAME, check)
