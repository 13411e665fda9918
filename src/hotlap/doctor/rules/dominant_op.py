"""One operation that is no matrix product takes a good part of the step: replace it.

The gain is the most that can be had: that of a step without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels, lines, told
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import times

NAME = "dominant_op"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """The costliest of those that are neither products, norms, copies, exchanges nor updates."""
    op = kernels.dominant(limits.least_dominant_share)
    if op is None:
        return
    share, where = kernels.share(op.seconds), lines(op.sites)
    what = "launched" if kernels.is_on_device else "called"
    yield Finding(
        NAME,
        "advice",
        f"{op.operator or op.name} alone takes {percent(share)} of the step",
        (told(op), f"{what} {times(op.calls)} a step"),
        without(share),
        f"{where or 'where it is called'}: a cheaper operation, a smaller input, or none "
        "(bilinear for bicubic, pooling for sorting, a fused kernel for a loop)",
    )


RULE = profile_rule(NAME, check)
