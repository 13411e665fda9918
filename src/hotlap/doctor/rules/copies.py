"""Copies take a good part of the step: other memory orders, other types, pieces put together.

The gain is that of a step without them, the most that can be had.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels, lines, told
from hotlap.doctor.model import is_channels_first
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "copies"
LEAST_TOLD = 0.01
"""Of the step: a smaller copy is not worth a line."""

BETWEEN = ("Memcpy HtoD", "Memcpy DtoH", "CopyHostToDevice", "CopyDeviceToHost")
"""How kernels begin that copy from the host or to it, on NVIDIA and on AMD."""


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """The class of kernels or operators that only copies.

    Those that convolutions make to have the channels innermost are left to the rule on that, those
    between host and device to the rules on batches; on a CPU samples are put together by copies
    too, which is data.
    """
    left = [op for op in kernels.top("copy") if op.name.startswith(BETWEEN)]
    if is_channels_first(training, limits):
        left += [op for op in kernels.top("copy") if "convolution" in op.operator]
    top = [op for op in kernels.top("copy") if op not in left]
    share = kernels.share(kernels.seconds("copy") - sum(op.seconds for op in left))
    if not kernels.is_on_device:
        share -= training.share("data")
    if share < limits.least_copy_share:
        return
    where = lines(site for op in top[:1] for site in op.sites)
    yield Finding(
        NAME,
        "advice",
        f"copies take {percent(share)} of the step",
        tuple(told(op) for op in top[:3] if kernels.share(op.seconds) >= LEAST_TOLD),
        without(share),
        f"{where or 'where they are made'}: one memory order and one type throughout "
        "(channels_last for model and inputs), no .contiguous() or torch.cat that is not needed",
    )


RULE = profile_rule(NAME, check)
