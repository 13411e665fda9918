"""Parts of a model's result that are no tensors, as replays of its call give them."""

from __future__ import annotations

import enum
from typing import Any

from hotlap.levers.common.unchanged import PLAIN

IMMUTABLE = (enum.Enum, *PLAIN)


def as_given(leaf: Any) -> Any:
    """A part of the result that is no tensor, as replays give it."""
    if isinstance(leaf, IMMUTABLE) or type(leaf).__module__ == "torch":  # a dtype, a device
        return leaf
    if type(leaf).__name__.endswith("Cache"):
        return NotReplayed(leaf)
    raise RuntimeError(f"its result holds a {type(leaf).__name__}, which only Python can make")


class NotReplayed:
    """Stands for a cache of a decoder in the result, which only Python can make.

    Trainings have no use for it; one that has ends with a sentence, and gets nothing out of date.
    """

    _kind: str

    def __init__(self, original: Any) -> None:
        self.__dict__["_kind"] = type(original).__name__

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"hotlap, lever cuda_graphs: the {self._kind} in the model's result is not replayed; "
            "run without this lever"
        )

    __getattr__ = __setattr__ = __getitem__ = __setitem__ = __iter__ = __len__ = _refuse
    __call__ = __bool__ = __contains__ = _refuse
