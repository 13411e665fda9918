"""What a training process holds: weights, buffers, gradients, states of optimizers.

Modules and optimizers are seen as the loop uses them, and referred to weakly. Bytes are those of
storages, so that tied weights and views count once.
"""

from __future__ import annotations

import resource
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_SAMPLES = 2000


class MemoryWatch:
    """Collects what there is to account for, and a sample of memory at the end of each step."""

    def __init__(self, torch: Any, session: Any) -> None:
        self._torch, self._session = torch, session
        self._is_tracing = torch.compiler.is_dynamo_compiling
        self._module_refs: list[Any] = []
        self._optimizers: dict[int, Any] = {}
        self._samples: list[int] = []

    def watch(self) -> None:
        """Be told of every module that the loop calls and every optimizer that it steps."""
        import torch.optim.optimizer as optimizer_module  # `torch.optim` itself hides it

        told_before = self._session.new_module

        def see_module(module: Any, args: Any, kwargs: Any) -> None:
            self._module_refs.append(weakref.ref(module))
            if told_before is not None:
                told_before(module, args, kwargs)

        self._session.new_module = see_module
        optimizer_module.register_optimizer_step_post_hook(self._see_optimizer)

    def _see_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._is_tracing() and id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def forget(self) -> None:
        """What was seen before a fork is the parent's."""
        self._module_refs.clear()
        self._optimizers.clear()
        self._samples.clear()

    @property
    def modules(self) -> list[Any]:
        """Those that are still there."""
        return [module for ref in self._module_refs if (module := ref()) is not None]

    def sample(self) -> None:
        """Note how much memory is in use now."""
        if len(self._samples) < MAX_SAMPLES:
            self._samples.append(self._in_use())

    def _in_use(self) -> int:
        if self._session.device is not None:
            return int(self._torch.cuda.memory_allocated())
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()

    def account(self) -> dict[str, Any]:
        """Bytes by category."""
        counted: set[int] = set()
        parameters = [p for module in self.modules for p in module.parameters()]
        optimizers = [one for ref in self._optimizers.values() if (one := ref()) is not None]
        for optimizer in optimizers:
            parameters += [p for group in optimizer.param_groups for p in group["params"]]
        tensor = self._torch.Tensor
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        found = {
            "weights": _bytes(parameters, counted),
            "buffers": _bytes((b for module in self.modules for b in module.buffers()), counted),
            "gradients": _bytes((p.grad for p in parameters if p.grad is not None), counted),
            "optimizer": _bytes(_tensors(states, tensor), counted),
        }
        return {**found, **self._device_peak(), "samples": self._samples}

    def _device_peak(self) -> dict[str, int]:
        if self._session.device is None:
            return {}
        stats = self._torch.cuda.memory_stats()
        return {
            "peak": stats["allocated_bytes.all.peak"],
            "reserved": stats["reserved_bytes.all.peak"],
            "in_pieces": stats["inactive_split_bytes.all.peak"],
        }


def _tensors(value: Any, tensor: type) -> Iterator[Any]:
    if isinstance(value, tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, tensor)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, tensor)


def _bytes(tensors: Iterable[Any], counted: set[int]) -> int:
    """Of the storages that no category before has counted; of a sharded tensor the local part."""
    total = 0
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        if storage.data_ptr() and storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total
