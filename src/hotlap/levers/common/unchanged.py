"""Whether a model is still what it was: its layers, weights, settings and hooks.

For what was recorded of a model's call and is played without asking its Python again. Weights and
hooks are looked at before every use, in a microsecond or two a layer. Attributes are looked at only
after one was set on a part of the model, which `nn.Module.__setattr__` tells: loops hardly do that.
"""

from __future__ import annotations

import functools
from typing import Any

from hotlap.levers.common.process import Process

PLAIN = (bool, int, float, str, type(None))
"""Values of attributes that decide what a forward does: a rate of dropout, a mode, a size."""
HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Settings:
    """Counts how often an attribute was set of the modules that are looked at.

    Not of others: a forward may make a module of its own, a loss for instance, and let it go.
    """

    def __init__(self, torch: Any, process: Process) -> None:
        self.n_set = 0
        self._parts: set[int] = set()
        original = torch.nn.Module.__setattr__

        @functools.wraps(original)
        def set_attribute(module: Any, name: str, value: Any) -> None:
            if id(module) in self._parts:
                self.n_set += 1
            original(module, name, value)

        process.replace(torch.nn.Module, "__setattr__", set_attribute)

    def look_at(self, model: Any) -> None:
        """At all of its parts as well."""
        self._parts.update(map(id, model.modules()))


class Unchanged:
    """A model as it is now, to be compared with what it is later."""

    def __init__(self, torch: Any, model: Any, settings: Settings) -> None:
        self._has_global_hook = torch.nn.modules.module._has_any_global_hook
        self._model, self._settings = model, settings
        settings.look_at(model)
        self._n_set, self._attributes = settings.n_set, _attributes(model)
        tensors = (*model.parameters(), *model.buffers())
        self._tensors = [(one, one.data_ptr(), one.requires_grad) for one in tensors]
        self._hooks = [getattr(part, name) for part in model.modules() for name in HOOKS]

    def holds(self) -> bool:
        """Whether the model would do the same as then."""
        if self.has_hooks():
            return False
        for tensor, address, requires_grad in self._tensors:
            if tensor.data_ptr() != address or tensor.requires_grad is not requires_grad:
                return False
        if self._settings.n_set != self._n_set:
            if _attributes(self._model) != self._attributes:
                return False
            self._n_set = self._settings.n_set
        return True

    def has_hooks(self) -> bool:
        """Whether Python of the user's is called on the way through the model."""
        return any(self._hooks) or self._has_global_hook()


def _attributes(model: Any) -> list[tuple[int, dict[str, Any], list[int]]]:
    """Of each part: its plain attributes, and which tensors and parts it holds."""
    return [
        (
            id(part),
            {name: value for name, value in vars(part).items() if type(value) in PLAIN},
            [id(one) for held in HELD for one in getattr(part, held).values()],
        )
        for part in model.modules()
    ]
