"""What the operations of a call read and write that the call did not make itself.

A CUDA graph reads memory and keeps none of it, and what is done on the host is no part of it.
"""

from __future__ import annotations

import functools
from typing import Any


def storage_of(tensor: Any) -> int | None:
    """The memory that a tensor is in, by an id; None for sparse ones, which have several."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None


@functools.cache
def reading_mode(torch: Any) -> Any:
    """The class of a mode of torch's that looks on while it is entered."""
    from torch.utils._python_dispatch import TorchDispatchMode

    leaves_of, is_tensor = torch.utils._pytree.tree_leaves, torch.is_tensor
    lifted, seeded = torch.ops.aten.lift_fresh.default, torch.Tag.nondeterministic_seeded

    top_hooks = torch._C._autograd._top_saved_tensors_default_hooks

    class Reading(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.from_outside: list[Any] = []
            """Tensors that were there before."""
            self.written: set[int | None] = set()
            """Memory that was changed."""
            self.draws = False
            """Whether random numbers were drawn."""
            self.saves_elsewhere = False
            """Whether tensors were saved by way of hooks, as checkpoints do."""
            self.crosses = False
            """Whether something was copied between the host and a device."""
            self._known: set[int | None] = set()

        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            for tensor in filter(is_tensor, leaves_of((args, kwargs))):
                place = storage_of(tensor)
                # What `torch.tensor(1.0)` has made is lifted first of all.
                if place not in self._known and operation is not lifted:
                    self.from_outside.append(tensor)
                self._known.add(place)
            result = operation(*args, **kwargs)
            self._known.update(map(storage_of, filter(is_tensor, leaves_of(result))))
            tensors = filter(is_tensor, leaves_of((args, kwargs, result)))
            # A number is given to a kernel as it is.
            places = {one.device.type for one in tensors if one.dim()}
            self.crosses = self.crosses or ("cpu" in places and len(places) > 1)
            self.draws = self.draws or seeded in operation.tags
            self.saves_elsewhere = self.saves_elsewhere or top_hooks(True) is not None
            if operation._schema.is_mutable:
                self._note_written(operation._schema.arguments, args, kwargs)
            return result

        def _note_written(self, parameters: Any, args: Any, kwargs: Any) -> None:
            for i, parameter in enumerate(parameters):
                if parameter.alias_info is not None and parameter.alias_info.is_write:
                    value = args[i] if i < len(args) else kwargs.get(parameter.name)
                    self.written.update(map(storage_of, filter(is_tensor, leaves_of(value))))

    return Reading
