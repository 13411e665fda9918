"""Matrix products so thin that reading them takes longer than computing them.

2mnk FLOPs need at least the bytes of three matrices: where a product has fewer FLOPs a byte than
the device can do in the time of one, memory limits it, and tensor cores wait. The gain is the most
that can be had: these products at the rate of large ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels, lines
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.records.profile import Matmul

NAME = "thin_products"
ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """Products below the balance of the device, and what they take beyond computing."""
    if not kernels.is_on_device:
        return  # caches of a CPU hold small matrices: memory does not limit these there
    thin = [one for one in kernels.rank.matmuls if _is_thin(one, kernels)]
    lost_s = sum(one.seconds - _computing_s(one, kernels) for one in thin)
    if kernels.share(lost_s) < limits.least_kernel_loss:
        return
    yield Finding(
        NAME,
        "advice",
        f"thin matrix products take {percent(kernels.share(sum(one.seconds for one in thin)))} "
        "of the step, most of it for memory",
        tuple(_told(one) for one in thin[:3]),
        without(kernels.share(lost_s)),
        "larger batches (`hotlap tune --sweep batch --allow batch_size`), wider layers, or several "
        "small products in one (one projection for query, key and value)",
    )


def intensity(one: Matmul) -> float:
    """FLOPs a byte, of a product that reads its operands once and writes its result once."""
    moved = one.m * one.k + one.k * one.n + one.m * one.n
    return 2.0 * one.m * one.n * one.k / (moved * ITEM_BYTES.get(one.dtype, 4))


def _is_thin(one: Matmul, kernels: Kernels) -> bool:
    roof = kernels.roof(one.dtype)
    if roof is None or not roof.flops_per_s or not roof.bytes_per_s:
        return False
    return intensity(one) < roof.flops_per_s / roof.bytes_per_s


def _computing_s(one: Matmul, kernels: Kernels) -> float:
    roof = kernels.roof(one.dtype)
    assert roof is not None
    assert roof.flops_per_s
    flops = 2.0 * one.m * one.n * one.k * one.batch * one.calls
    return min(one.seconds, flops / roof.flops_per_s)


def _told(one: Matmul) -> str:
    batch = f"{one.batch} x " if one.batch > 1 else ""
    where = lines(one.sites)
    size = f"{batch}({one.m} x {one.k}) ({one.k} x {one.n}) in {one.dtype}"
    text = f"{size}: {intensity(one):.3g} FLOPs a byte, {one.seconds * 1e3:.3g} ms a step"
    return f"{text} ({where})" if where else text


RULE = profile_rule(NAME, check)
