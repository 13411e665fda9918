"""The half-precision tensor behind a result that was given back in fp32.

A compiled loss that does the cast itself reads half as many bytes of it, and its gradient goes back
as it is: without, a language model's logits are read and written twice more for nothing but casts.

Not seen: logits that are changed by way of `.data`. A gradient of the logits that is asked for once
the loss is there does not come: it goes by way of the half.
"""

from __future__ import annotations

import functools
from typing import Any


class Halves:
    """Halves by the fp32 tensors that were made of them, for as long as these live."""

    def __init__(self, torch: Any) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._halves = WeakIdKeyDictionary()
        self.is_wanted = False
        """Whether there is a loss that asks for them: else they would be kept for nothing."""

    def remember(self, full: Any, half: Any) -> None:
        """That the one is the other, cast."""
        if self.is_wanted and half.requires_grad:
            self._halves[full] = half, full._version

    def behind(self, tensor: Any) -> Any:
        """The half that is this tensor when it is cast, in its shape; None where there is none."""
        full = tensor if tensor._base is None else tensor._base
        half, version = self._halves.get(full, (None, 0))
        if half is None or full._version != version:
            return None  # or it was changed in place
        is_whole = tensor.data_ptr() == full.data_ptr() and tensor.numel() == full.numel()
        if not (is_whole and all(one.is_contiguous() for one in (tensor, full, half))):
            return None
        # Somebody wants to see the gradient on its way, which would go by another.
        if any(one._backward_hooks or one.retains_grad for one in (tensor, full)):
            return None
        return half.view(tensor.shape)


@functools.cache
def halves(torch: Any) -> Halves:
    """Of this process."""
    return Halves(torch)
