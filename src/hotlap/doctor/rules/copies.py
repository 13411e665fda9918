"""Copies take a good part of the step: other memory orders, other types, pieces put together.

The gain is that of a step without them, the most that can be had.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels, lines, told
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "copies"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """The class of kernels or operators that only copies."""
    share = kernels.share(kernels.seconds("copy"))
    if share < limits.least_copy_share:
        return
    top = kernels.top("copy")
    where = lines(site for op in top[:1] for site in op.sites)
    yield Finding(
        NAME,
        "advice",
        f"copies take {percent(share)} of the step",
        tuple(told(op) for op in top[:3]),
        without(share),
        f"{where or 'where they are made'}: one memory order and one type throughout "
        "(channels_last for model and inputs), no .contiguous() or torch.cat that is not needed",
    )


RULE = profile_rule(NAME, check)
