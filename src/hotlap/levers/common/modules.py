"""Give modules another `forward`, in a way that copying, saving and undoing survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.levers.common.process import Process

Forward = Callable[..., Any]
"""forward(the class's own forward, module, *args, **kwargs)"""

_ORIGINAL = "_hotlap_original"


class ForwardSwap:
    """Swaps the class of modules for a subclass with another `forward`.

    An attribute `forward` of the instance would go along into a deep copy, where it still runs the
    original's weights. A copy or a pickle of a swapped module is of the original class again.
    """

    def __init__(self, process: Process, forward: Forward) -> None:
        self._process, self._forward = process, forward
        self._made: dict[type, type] = {}

    def __call__(self, part: Any) -> bool:
        """Swap a module's class; not where the instance has a `forward` that would go first."""
        before = type(part)
        if "forward" in vars(part) or before in self._made.values():
            return False
        if before not in self._made:
            self._made[before] = _subclass(before, self._forward)
        part.__class__ = self._made[before]
        self._process.on_undo(lambda: setattr(part, "__class__", before))
        return True


def _subclass(original: type, forward: Forward) -> type:
    own_forward = original.forward  # type: ignore[attr-defined]

    def new_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(own_forward, self, *args, **kwargs)

    members = {
        "forward": new_forward,
        "__reduce_ex__": _reduce_to_original,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        _ORIGINAL: original,
    }
    return type(original.__name__, (original,), members)


def _reduce_to_original(self: Any, protocol: Any) -> Any:
    kind = type(self)
    original = kind
    while _ORIGINAL in vars(original):
        original = vars(original)[_ORIGINAL]
    # What newer protocols make of an object, pickle refuses for one of another class.
    reduced: Any = object.__reduce_ex__(self, 1)
    function, arguments, *rest = reduced
    return (function, tuple(original if a is kind else a for a in arguments), *rest)
