"""Operations below autograd: which of them are kernels, what they multiply and what they move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotlap.planner.layers import Matmul

if TYPE_CHECKING:
    import torch

ATTENTION = "scaled_dot_product"
BATCH_NORM = "batch_norm"
GATHERS = ("embedding", "embedding_dense_backward", "nll_loss_forward", "nll_loss_backward")
"""Operations that read a few numbers of their largest input: a row a token, one for a target."""
FREE = ("empty", "empty_like", "empty_strided", "zeros", "arange", "lift_fresh", "_unsafe_view")
"""Operations that move nothing worth counting."""


def tensors_in(value: Any) -> list[Any]:
    """All tensors among arguments or results."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def place_of(tensor: torch.Tensor) -> int:
    """Of its storage: the same for all views of it."""
    return int(tensor.untyped_storage()._cdata)


def nbytes(tensor: torch.Tensor) -> int:
    """Of its numbers, wherever they lie."""
    return int(tensor.numel() * tensor.element_size())


def _is_view(func: Any) -> bool:
    """Whether nothing moves: what it returns is its input, seen otherwise."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return bool(aliases) and all(one is not None and not one.is_write for one in aliases)


def is_kernel(func: Any, made: Any) -> bool:
    """Whether an operation is worth counting: it writes something of its own."""
    name = func.overloadpacket.__name__
    return not _is_view(func) and name not in FREE and bool(tensors_in(made))


def is_cast(name: str) -> bool:
    """Whether an operation writes its input in another type or place: a compiler has it inside of
    those that need it."""
    return name == "_to_copy"


def is_product(name: str) -> bool:
    """Whether an operation multiplies matrices, forward or backward; others move bytes."""
    return name in PRODUCTS or name in BACKWARDS or ATTENTION in name


def reordered_bytes(name: str, inputs: Any, outputs: Any) -> int:
    """Copies of its two images that a convolution holds where it needs them in another order."""
    if name not in ("convolution", "convolution_backward"):
        return 0
    read = tensors_in(inputs)
    # Forward takes an image and weights, backward the gradient of the output before them.
    image, other = (read[0], tensors_in(outputs)[0]) if name == "convolution" else read[:2]
    return nbytes(image) + nbytes(other)


def moved_bytes(name: str, inputs: Any, outputs: Any) -> int:
    """Read and written by an operation."""
    written = sum(map(nbytes, tensors_in(outputs)))
    if name in GATHERS:
        return written
    return written + sum(map(nbytes, tensors_in(inputs)))


def _linear(read: list[Any], written: list[Any], inputs: Any, batch: int) -> list[Matmul]:
    """mm and addmm: the last two tensors are the factors."""
    left, right = read[-2], read[-1]
    return [Matmul(left.shape[0] / batch, right.shape[1], left.shape[1])]


def _batched(read: list[Any], written: list[Any], inputs: Any, batch: int) -> list[Matmul]:
    left, right = read[-2], read[-1]
    n, rows, inner = left.shape
    return [Matmul(rows / batch, right.shape[2], inner, groups=n)]


def _convolution(read: list[Any], written: list[Any], inputs: Any, batch: int) -> list[Matmul]:
    image, weight, output = read[0], read[1], written[0]
    is_transposed, groups = inputs[0][6], inputs[0][8]
    if is_transposed:
        image, output = output, image
    window = weight[0].numel()
    channels = output.shape[1] // groups
    rows = output.numel() // output.shape[1] / batch
    return [
        Matmul(rows, channels, window, groups=groups, input_elements=image.numel() / batch / groups)
    ]


def _recurrent(read: list[Any], written: list[Any], inputs: Any, batch: int) -> list[Matmul]:
    """A layer of an LSTM, one way: its input at once, its state one element at a time."""
    length, n_sequences, _ = read[0].shape
    (n, width), (_, state) = read[1].shape, read[2].shape
    rows = n_sequences / batch
    return [Matmul(rows * length, n, width), Matmul(rows, n, state, groups=length)]


PRODUCTS = {
    "mm": _linear,
    "addmm": _linear,
    "bmm": _batched,
    "baddbmm": _batched,
    "convolution": _convolution,
    "mkldnn_rnn_layer": _recurrent,
}
BACKWARDS = ("convolution_backward", "mkldnn_rnn_layer_backward")
"""Of those whose backward is an operation of its own."""
