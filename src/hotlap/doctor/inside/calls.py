"""Calls that take time in the step, or have the host wait for the device."""

from __future__ import annotations

import builtins
import copy
import functools
import gc
from typing import Any
from weakref import WeakSet

from hotlap.doctor.inside.watch import Watch

BARRIERS = ("torch.cuda.synchronize", "torch.cuda.empty_cache")
SYNCS = ("item", "cpu", "tolist", "nonzero", "__bool__", "__float__", "__int__")


def install(watch: Watch) -> None:
    """Count and time them."""
    torch = watch.torch
    watch.timed(builtins, "print", "print")
    watch.timed(gc, "collect", "gc.collect")
    watch.timed(copy, "deepcopy", "copy.deepcopy")
    watch.timed(torch, "save", "torch.save")
    watch.timed(torch, "tensor", "torch.tensor", _is_of_arrays)
    watch.timed(torch, "as_tensor", "torch.as_tensor", _is_of_arrays)
    watch.timed(torch.optim.Optimizer, "zero_grad", "zero_grad", _keeps_gradients)
    watch.timed(torch.nn.Module, "zero_grad", "zero_grad", _keeps_gradients)
    watch_starts(watch, torch.utils.data.DataLoader)
    watch.timed(torch.cuda, "empty_cache", "torch.cuda.empty_cache")
    if torch.version.cuda or torch.version.hip:
        watch.timed(torch.cuda, "synchronize", "torch.cuda.synchronize")
        for name in SYNCS:
            watch.timed(torch.Tensor, name, f"Tensor.{name}", _is_on_device)
        watch.timed(torch.Tensor, "to", "Tensor.to", _goes_to_host)


def _is_of_arrays(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A list of numpy arrays, which torch reads number by number."""
    data = args[0] if args else kwargs.get("data")
    first = data[0] if isinstance(data, (list, tuple)) and data else None
    return type(first).__name__ == "ndarray"


def _keeps_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`zero_grad(set_to_none=False)`: gradients are filled with zeros and added to."""
    return (args[1] if len(args) > 1 else kwargs.get("set_to_none", True)) is False


def watch_starts(watch: Watch, loader_class: Any) -> None:
    """Time the starts of workers, those of a loader that had some before apart from its first."""
    seen: WeakSet[Any] = WeakSet()
    original = loader_class.__iter__

    @functools.wraps(original)
    def start(loader: Any) -> Any:
        iterator = original(loader)
        watch.try_to(seen.add, loader)
        return iterator

    def label(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        if not args[0].num_workers or args[0].persistent_workers:
            return None
        return "iter(loader)" if args[0] in seen else "iter(new loader)"

    loader_class.__iter__ = start
    watch.timed(loader_class, "__iter__", label)


def _is_on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[0].is_cuda)


def _goes_to_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target = args[1] if len(args) > 1 else kwargs.get("device")
    return bool(args[0].is_cuda) and str(target) == "cpu"
