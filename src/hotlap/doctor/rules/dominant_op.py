"""One operation that is no matrix product takes a good part of the step: replace it.

The gain is the most that can be had: that of a step without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import PRODUCTS, Kernels, is_update, lines, told
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "dominant_op"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """The costliest of those that are neither products, copies, exchanges nor updates."""
    for op in kernels.rank.top:
        share = kernels.share(op.seconds)
        if op.kind in (*PRODUCTS, "copy", "collective") or is_update(op):
            continue
        if not kernels.dominates(op, limits.least_dominant_share):
            return
        where = lines(op.sites)
        yield Finding(
            NAME,
            "advice",
            f"{op.operator or op.name} alone takes {percent(share)} of the step",
            (told(op), f"called {op.calls:.3g} times a step"),
            without(share),
            f"{where or 'where it is called'}: a cheaper operation, a smaller input, or none "
            "(bilinear for bicubic, pooling for sorting, a fused kernel for a loop)",
        )
        return


RULE = profile_rule(NAME, check)
