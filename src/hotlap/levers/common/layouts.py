"""How tensors lie in memory, and copies that lie as they do: kernels are chosen by it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

NO_STRIDES = (-1,)


def layout_of(tensor: Any) -> tuple[int, ...]:
    """Strides, but for those that lead nowhere; of a sparse tensor, which has none, what it is."""
    if str(tensor.layout) != "torch.strided":
        return NO_STRIDES
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for n, stride in sizes if n != 1)


def copier(torch: Any, tensor: Any) -> Callable[[Any], Any]:
    """Copies that lie in memory as this tensor does: what is computed from them may depend on it.

    `clone` does so, but for slices of others.
    """
    if layout_of(tensor.clone()) == layout_of(tensor) or 0 in layout_of(tensor):
        return torch.clone  # type: ignore[no-any-return]
    like = functools.partial(torch.empty_strided, tensor.shape, tensor.stride())
    return lambda one: like(dtype=one.dtype, device=one.device).copy_(one)


def laid_out(torch: Any, result: Any, layout: tuple[int, ...]) -> Any:
    """Memory for a gradient of a result, with the strides that it comes with."""
    if 0 in layout:  # one number that stands for many
        return torch.empty_like(result)
    left = list(layout)
    strides = [1 if n == 1 else left.pop(0) for n in result.shape]
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def all_copied(torch: Any, gradients: Sequence[Any]) -> list[Any]:
    """In few kernels; what is complex one by one, where multiplying by one is not nothing."""
    real = [one for one in gradients if one is not None and not one.is_complex()]
    copies = iter(torch._foreach_mul(real, 1.0) if real else ())
    return [
        None if one is None else one.clone() if one.is_complex() else next(copies)
        for one in gradients
    ]
