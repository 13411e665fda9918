"""Products are in 16 bits, and most of their time is in kernels that use no tensor cores.

The gain is the most that can be had: these products at the rate of tensor cores, or of memory where
that is what limits them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import PRODUCTS, Kernels, told
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "idle_tensor_cores"
NARROW = ("bfloat16", "float16", "float8")


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """By the names of the kernels of products, convolutions and attention."""
    used, dtypes = kernels.rank.tensor_core_share, kernels.rank.matmul_dtypes
    products_s = kernels.seconds(*PRODUCTS)
    if used is None or used >= limits.least_tensor_core_share:
        return
    if next(iter(dtypes), "") not in NARROW:
        return
    if kernels.share(products_s) < limits.least_compute_share:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(1 - used)} of the time of 16-bit products is in kernels without tensor cores",
        tuple(told(op) for op in kernels.top(*PRODUCTS)[:3]),
        _gain(kernels, products_s),
        "sizes of layers, channels and batches that are multiples of 8 (better 64); convolutions "
        "in groups have few kernels for tensor cores",
    )


def _gain(kernels: Kernels, products_s: float) -> float | None:
    roof = kernels.roof()
    known = [one for one in kernels.rank.classes if one.name in PRODUCTS]
    if roof is None or not roof.flops_per_s or any(one.flops is None for one in known):
        return None
    least_s = sum(one.flops or 0.0 for one in known) / roof.flops_per_s
    if roof.bytes_per_s:
        least_s = max(least_s, sum(one.bytes or 0.0 for one in known) / roof.bytes_per_s)
    return without(kernels.share(max(0.0, products_s - least_s)))


RULE = profile_rule(NAME, check)
