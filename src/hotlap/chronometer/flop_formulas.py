"""FLOPs of the operators that torch's counter has no formula for, or a wrong one.

A formula is given an operator's arguments as tensors, fake or not. Only products of matrices and
convolutions count, 2 a multiply-add; of a backward only the gradients that are asked for, as if the
layer were written out with linear ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from hotlap.chronometer.stored_numbers import is_sparse, stored_numbers


class UncountedError(Exception):
    """An operator multiplies, and nothing tells how much."""


def _product(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Of matrices, batched or not, or with a vector; of a sparse one only what it stores counts."""
    if is_sparse(left) and is_sparse(right):
        raise UncountedError("a product of two sparse tensors depends on where their numbers are")
    if is_sparse(right):
        return 2 * _stored(right) * int(prod(left.shape[:-1]))
    columns = right.shape[-1] if right.dim() > 1 else 1
    return 2 * (_stored(left) if is_sparse(left) else left.numel()) * int(columns)


def _added(_to: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return _product(left, right)


def _grouped(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Groups share out the rows, the columns or what is summed over, all of them together once."""
    if left.dim() == 3 and right.dim() == 2:
        return 2 * int(left.shape[1]) * int(right.numel())
    return _product(left, right)


def _sampled(sample: Any, left: Any, _right: Any, *_: Any, **__: Any) -> int:
    """Of a dense product only the numbers that a sparse tensor stores."""
    return 2 * _stored(sample) * int(left.shape[-1])


def _stored(sparse: Any) -> int:
    n = stored_numbers(sparse)
    if n is None:
        raise UncountedError("how many numbers a sparse tensor stores is decided in the forward")
    return n


def _convolution_backward(gradient: Any, given: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """torch's takes the weight gradient of a grouped convolution for that of a full one."""
    _bias, _stride, _padding, _dilation, is_transposed, *_others, wanted = rest
    places = (given if is_transposed else gradient).shape
    forward = 2 * int(places[0] * prod(places[2:])) * int(weight.numel())
    return forward * sum(map(bool, wanted[:2]))


def _rnn(given: Any, weights: Sequence[Any], *_: Any, **__: Any) -> int:
    """Any number of layers and directions: each matrix meets each element of the sequences once."""
    return 2 * _n_elements(given) * sum(map(_matrix_size, weights))


def _rnn_backward(given: Any, weights: Sequence[Any], stride: int, *rest: Any, **_: Any) -> int:
    _buffer, states, *_others, is_bidirectional, _sizes, _dropout, _reserve, wanted = rest
    wants_given, wants_states, _, wants_weights = wanted
    forward = _rnn(given, weights)
    first = weights[: 2 * stride : stride] if is_bidirectional else weights[:1]
    flops = forward * (1 + bool(wants_weights))
    if not wants_given:
        flops -= _rnn(given, first)
    if not wants_states:
        flops -= _rnn(states[0], weights[1::stride])
    return flops


def _rnn_layer(given: Any, from_input: Any, from_state: Any, *_: Any, **__: Any) -> int:
    """oneDNN's: one layer, one direction."""
    return _rnn(given, (from_input, from_state))


def _rnn_layer_backward(given: Any, *rest: Any, **_: Any) -> int:
    """It computes every gradient; those that are asked for count."""
    from_input, from_state, _bias, _other_bias, states, *_others = rest
    flops = _rnn(given, [weight for weight in (from_input, from_state) if weight.requires_grad])
    if given.requires_grad:
        flops += _rnn(given, (from_input,))
    flops += _rnn(given, (from_state,))
    if not states.requires_grad:
        flops -= _rnn(states, (from_state,))
    return flops


def _n_elements(sequences: Any) -> int:
    """Of all sequences together; packed ones have no dimension of their own for time."""
    return int(prod(sequences.shape[:-1]))


def _matrix_size(weight: Any) -> int:
    return int(weight.numel()) if weight.dim() > 1 else 0


FORMULAS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), _product),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "_sparse_addmm"), _added),
    **dict.fromkeys(("baddbmm", "baddbmm_", "addbmm", "addbmm_", "addmv", "addmv_"), _added),
    "_grouped_mm": _grouped,
    "sparse_sampled_addmm": _sampled,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), _rnn),
    **dict.fromkeys(("_cudnn_rnn_backward", "miopen_rnn_backward"), _rnn_backward),
    "mkldnn_rnn_layer": _rnn_layer,
    "mkldnn_rnn_layer_backward": _rnn_layer_backward,
}
"""By the name of an operator of `torch.ops.aten`."""

_MULTIPLIES = re.compile(
    r"(?:^|_)(?:\w*mm|\w*mv|matmul|linear|trilinear|cdist|attention|transformer"
    r"|conv|conv_\w+|\w*conv[123]d|convolution|deform_conv\w*|rnn|lstm|gru"
    r"|linalg|cholesky|solve|svd|eigh?|qr|geqrf|ormqr|lu|matrix)(?:_|$)"
)
_MULTIPLIES_NOT = re.compile(
    r"(?:lstm|gru)_cell|flatten_weight|lu_unpack"
    r"|linalg_(?:vector_norm|_powsum|cross|diagonal|check_errors|vander|vecdot)"
)
"""The cells that are one operator get what linear ones have multiplied."""
_KNOWN = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "torchvision"}
"""Namespaces whose operators' names tell what they do."""


def multiplies(namespace: str, name: str) -> bool:
    """Whether an operator without a formula may multiply matrices."""
    if namespace not in _KNOWN:
        return True
    return bool(_MULTIPLIES.search(name)) and not _MULTIPLIES_NOT.search(name)
