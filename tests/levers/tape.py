"""What stands in for a CUDA graph where there is no GPU: operations, done again in their memory.

Python is not asked again, and nothing is computed while it is recorded, as with a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hotlap.levers.common.reads import storage_of

Step = tuple[Any, Any, Any, Any, bool]


class _Log(TorchDispatchMode):
    """The operations below autograd, with what they were given and what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        # Some operations keep more where gradients will be asked for.
        self.steps.append((operation, args, kwargs or {}, result, torch.is_grad_enabled()))
        return result


class TapeRecorder:
    """As `CudaRecorder`, of which replays count."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.n_replays = 0

    def is_capturing(self) -> bool:
        return False

    def random_state(self) -> Any:
        return torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        state = [*self._model.parameters(), *self._model.buffers()]
        before, drawn = [one.detach().clone() for one in state], torch.get_rng_state()
        with _Log() as log:
            function()
        for tensor, value in zip(state, before, strict=True):
            tensor.data.copy_(value)  # unseen by autograd, as what is recorded is not run
        torch.set_rng_state(drawn)

        def replay() -> None:
            self.n_replays += 1
            with torch.autocast("cpu", enabled=False):
                for *step, has_gradients in log.steps:
                    with torch.set_grad_enabled(has_gradients):
                        _do_again(*step)

        return replay


def _do_again(operation: Any, args: Any, kwargs: Any, result: Any) -> None:
    memory = _storages((args, kwargs))
    is_view = not operation._schema.is_mutable and _storages(result) & memory
    if is_view or operation is torch.ops.aten.lift_fresh.default:
        return  # it shows what its memory holds
    again = operation(*tree_map(_data, args), **tree_map(_data, kwargs))
    if not operation._schema.is_mutable:
        for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
            if torch.is_tensor(old):
                old.data.copy_(new)


def _data(leaf: Any) -> Any:
    return leaf.data if torch.is_tensor(leaf) else leaf


def _storages(tree: Any) -> set[int | None]:
    return {storage_of(leaf) for leaf in tree_leaves(tree) if torch.is_tensor(leaf)}
