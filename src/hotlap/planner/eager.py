"""What operations move, and how long their kernels take at it where nothing compiles them.

A kernel that is bound by bandwidth takes the time of its bytes, but not every kind is as good at it
as another: rows that are reduced, joined or brought into another order are read at a fraction of
what a copy reaches. The shares here are of kernels timed one by one on an H200 (ViT-B, GPT-2 and
ResNet-50, torch 2.11), relative to the usual share of bandwidth that a calibration has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotlap.planner.operations import BATCH_NORM, moved_bytes, tensors_in

PLAIN = 0.9
"""A kernel that reads and writes one type in order, of the usual time."""
MIXED = 1.2
"""The same between types, as casts are, and sums of a 16-bit branch and an fp32 stream."""
OUT_OF_ORDER = 2.75
"""A copy into another order of dimensions."""
REORDERING = ("clone", "_to_copy", "copy_")
SLOW = {
    "native_layer_norm": 1.9,
    "native_layer_norm_backward": 2.85,
    "cat": 3.8,
    "stack": 3.8,
    "sum": 2.0,
    "gelu": 1.3,
    "gelu_backward": 1.2,
    "_softmax": 1.25,
    "_softmax_backward_data": 1.25,
    "_log_softmax": 1.25,
    "_log_softmax_backward_data": 1.25,
    "max_pool2d_with_indices": 3.5,
    "max_pool2d_with_indices_backward": 5.3,
}
"""By name."""
SUMS_FIRST, SUMS_FIRST_BACKWARD = 3 / 2, 5 / 3
"""A norm over the batch reads what it normalises twice, in backward its gradient as well."""
CUDNN_BATCH_NORM = 1.05
OWN_BATCH_NORM, OWN_BATCH_NORM_BACKWARD = 3.0, 1.45
"""Torch's own, which it takes for bf16, where channels lie last."""
OWN_LAUNCHES = 1
"""More than cuDNN's norm has, in each direction."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of operations that are bound by bandwidth."""

    moved: float = 0.0
    """Read and written."""
    eager: float = 0.0
    """As many as a usual kernel would move in the time that these take in eager mode."""
    batch_norm: float = 0.0
    """The same of torch's own norms over a batch, which depend on how images lie."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.moved + other.moved,
            self.eager + other.eager,
            self.batch_norm + other.batch_norm,
        )

    def times(self, factor: float) -> Traffic:
        """All of it."""
        return Traffic(factor * self.moved, factor * self.eager, factor * self.batch_norm)


def traffic_of(name: str, inputs: Any, outputs: Any) -> Traffic:
    """Of one operation."""
    moved = float(moved_bytes(name, inputs, outputs))
    if BATCH_NORM in name:
        is_backward = name.endswith("backward")
        moved *= SUMS_FIRST_BACKWARD if is_backward else SUMS_FIRST
        if is_own_batch_norm(name, inputs):
            own = OWN_BATCH_NORM_BACKWARD if is_backward else OWN_BATCH_NORM
            return Traffic(moved, 0.0, own * moved)
        return Traffic(moved, CUDNN_BATCH_NORM * moved)
    return Traffic(moved, moved * _times(name, inputs, outputs))


def is_own_batch_norm(name: str, inputs: Any) -> bool:
    """Whether torch computes a norm over the batch itself: cuDNN's takes no bf16 there."""
    return BATCH_NORM in name and any(
        str(tensor.dtype) == "torch.bfloat16" for tensor in tensors_in(inputs)
    )


def _times(name: str, inputs: Any, outputs: Any) -> float:
    if name in SLOW:
        return SLOW[name]
    read, written = tensors_in(inputs), tensors_in(outputs)
    if name in REORDERING and read and not read[-1].is_contiguous():
        return OUT_OF_ORDER
    types = {tensor.dtype for tensor in (*read, *written) if tensor.is_floating_point()}
    return MIXED if len(types) > 1 else PLAIN
