"""The model runs under autocast, and a good part of its products is in fp32 all the same.

What is called outside of the autocast region, or in a function that switches it off, stays as it
was. The gain is that of these products at the rate of 16-bit ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent
from hotlap.doctor.kernels import WIDE, Kernels, lines
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "autocast_missed"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """The types that products were really computed in."""
    dtypes = kernels.rank.matmul_dtypes
    wide_s, all_s = sum(dtypes.get(one, 0.0) for one in WIDE), sum(dtypes.values())
    in_autocast = any(one.facts.get("in_autocast") for one in training.workload.models)
    if not in_autocast or kernels.share(wide_s) < limits.least_wide_share:
        return
    missed = [one for one in kernels.rank.matmuls if one.dtype in WIDE]
    where = lines(site for one in missed[:1] for site in one.sites)
    yield Finding(
        NAME,
        "advice",
        f"{percent(wide_s / all_s)} of the time of products is in fp32, in spite of autocast",
        tuple(
            f"({one.m} x {one.k}) ({one.k} x {one.n}) in {one.dtype}, "
            f"{one.seconds * 1e3:.3g} ms a step"
            + (f" ({told})" if (told := lines(one.sites)) else "")
            for one in missed[:3]
        )
        or tuple(f"{dtype}: {seconds * 1e3:.3g} ms a step" for dtype, seconds in dtypes.items()),
        kernels.gain_of_narrow(),
        f"{where or 'calls of the model and of its loss'}: inside of torch.autocast, without "
        ".float() and without enabled=False",
    )


RULE = profile_rule(NAME, check)
