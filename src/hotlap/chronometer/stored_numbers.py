"""How many numbers a sparse tensor stores: what a fake one forgets.

It is written on the fake tensor, and carried over by the operators that keep every number.
"""

from __future__ import annotations

from typing import Any

_ATTRIBUTE = "hotlap_stored_numbers"
_KEEP_ALL = {"t", "transpose", "permute", "detach", "alias", "clone", "_to_copy", "_conj"}
_FROM_VALUES = "_sparse_coo_tensor_with_dims_and_tensors"


def is_sparse(tensor: Any) -> bool:
    """Whether it stores some of its numbers only."""
    return str(tensor.layout).startswith("torch.sparse_")


def stored_numbers(tensor: Any) -> int | None:
    """None of a fake one that came to be in the forward."""
    known: int | None = getattr(tensor, _ATTRIBUTE, None)
    if known is not None or _is_fake(tensor):
        return known
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # the mode of fake tensors would answer for a fake copy
        values = tensor._values() if str(tensor.layout) == "torch.sparse_coo" else tensor.values()
        return int(values.numel())


def note_stored_numbers(tensor: Any, n: int | None) -> None:
    """Write on a fake tensor how many the real one stores."""
    setattr(tensor, _ATTRIBUTE, n)


def carry_stored_numbers(name: str, args: tuple[Any, ...], made: Any) -> None:
    """After an operator ran on fake tensors: what is known of its input is known of its output."""
    if name in _KEEP_ALL and is_sparse(made):
        note_stored_numbers(made, stored_numbers(args[0]))
    elif name == _FROM_VALUES:
        note_stored_numbers(made, args[4].numel())


def _is_fake(tensor: Any) -> bool:
    return type(tensor).__name__ == "FakeTensor"
