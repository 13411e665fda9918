"""Whether a model is still what it was: its layers, weights, settings and hooks.

For what was recorded of a model's call and is played without asking its Python again. What a part
holds (weights, layers, lists, generators) and its hooks are looked at before every use, in a few
microseconds a layer. Other attributes are looked at only after one was set or deleted on a part of
the model, which `nn.Module` tells: loops hardly do that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any

from hotlap.levers.common.process import Process

PLAIN = (bool, int, float, str, type(None))
"""Values that are what they say: a rate of dropout, a mode, a size."""
CONTAINERS = (list, set, dict)
HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_TORCH = ("_compiled_call_impl", "_flat_weights", "_flat_weight_refs")
"""Attributes that are set for ends of torch's, or ours; RNNs keep their weights a second time."""


class Settings:
    """Counts how often an attribute was set or deleted of the modules that are looked at.

    Not of others: a forward may make a module of its own, a loss for instance, and let it go.
    """

    def __init__(self, torch: Any, process: Process) -> None:
        self.n_set = 0
        # By identity: a module of a user's may compare itself by what it holds, or have no hash.
        self._parts = torch.utils.weak.WeakIdKeyDictionary()
        for name in ("__setattr__", "__delattr__"):
            self._count(torch.nn.Module, name, process)

    def _count(self, kind: Any, name: str, process: Process) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def counted(module: Any, attribute: str, *value: Any) -> None:
            if module in self._parts and attribute not in OF_TORCH:
                self.n_set += 1
            original(module, attribute, *value)

        process.replace(kind, name, counted)

    def look_at(self, model: Any) -> None:
        """At all of its parts as well."""
        self._parts.update(dict.fromkeys(model.modules()))


class Unchanged:
    """A model as it is now, to be compared with what it is later."""

    def __init__(self, torch: Any, model: Any, settings: Settings) -> None:
        self._has_global_hook = torch.nn.modules.module._has_any_global_hook
        self._settings, self._n_set = settings, settings.n_set
        settings.look_at(model)
        parts = self._parts = list(model.modules())
        self._books = {*OF_TORCH, *vars(torch.nn.Module())} - {"training"}
        self._attributes = self._all_attributes()
        values = [v for part in parts for name, v in vars(part).items() if name not in self._books]
        self._lively = [one for one in values if _state_of(one) is not None]
        self._contents = self.contents()
        own = [one for one in values if torch.is_tensor(one)]
        tensors = (*model.parameters(), *model.buffers(), *own)
        self._tensors = [(one, one.data_ptr(), one.requires_grad) for one in tensors]
        held = [getattr(part, name) for part in parts for name in HELD]
        self._held = [(one, [*one.values()]) for one in held if one]
        self._empty = [one for one in held if not one]  # most of them, and looked at in no time
        self._hooks = [getattr(part, name) for part in parts for name in HOOKS]

    def holds(self) -> bool:
        """Whether the model would do the same as then."""
        if self.has_hooks():
            return False
        if any(self._empty):
            return False
        for held, then in self._held:
            if len(held) != len(then) or not all(map(is_, held.values(), then)):
                return False
        for tensor, address, requires_grad in self._tensors:
            if tensor.data_ptr() != address or tensor.requires_grad is not requires_grad:
                return False
        if self.contents() != self._contents:
            return False
        if self._settings.n_set != self._n_set:
            if self._all_attributes() != self._attributes:
                return False
            self._n_set = self._settings.n_set
        return True

    def _all_attributes(self) -> list[dict[str, Any]]:
        """Of the parts, but for the books that torch keeps of a module."""
        return [
            {name: _told(value) for name, value in vars(part).items() if name not in self._books}
            for part in self._parts
        ]

    def has_hooks(self) -> bool:
        """Whether Python of the user's is called on the way through the model."""
        return any(self._hooks) or self._has_global_hook()

    def contents(self) -> list[Any]:
        """What is in the containers, generators and tensors of the host that the parts held then.

        These change without an attribute being set.
        """
        return [_state_of(one) for one in self._lively]


class Same:
    """Compares a value by identity, and keeps it alive: an id may come again."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _told(value: Any) -> Any:
    """Plain values, and what was made of them anew, are the same if they are equal."""
    if isinstance(value, PLAIN):
        return value
    if type(value) is tuple:
        return tuple(map(_told, value))
    return Same(value)


def _state_of(value: Any) -> Any:
    """Of what can change in place: something to compare it by; None for other values."""
    value = getattr(value, "__self__", value)  # a generator's own method
    if type(value) in CONTAINERS:
        return list(map(_told, _items(value)))
    if hasattr(value, "untyped_storage"):
        return None if value.is_cuda else value._version
    if hasattr(value, "bit_generator"):  # numpy's
        return repr(value.bit_generator.state)
    if hasattr(value, "getstate"):  # random's
        return value.getstate()
    if type(value).__name__ == "Generator" and hasattr(value, "get_state"):  # torch's
        return value.get_state().numpy().tobytes()
    return None


def _items(container: Any) -> Iterator[Any] | Sequence[Any]:
    if type(container) is dict:
        return (one for pair in container.items() for one in pair)
    return container  # type: ignore[no-any-return]
