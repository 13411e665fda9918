"""Calls of the model with gradients, backwards and updates: in which mode and on which shapes."""

from __future__ import annotations

import functools
import sys
from typing import Any

from hotlap.chronometer.session import first_tensor
from hotlap.doctor.inside.watch import Watch, site_of

MAX_SHAPES = 64
N_PADDED = 4
"""Calls whose inputs are looked through for padding."""


def install(watch: Watch) -> None:
    """Follow the loop."""
    calls = _Calls(watch)
    watch.session.on_training_call = calls.see
    _backwards(watch)
    _updates(watch)
    _mode(watch)


class _Calls:
    """Outermost calls of modules with gradients on."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.shapes: dict[tuple[int, ...], int] = {}
        self.padding: list[float] = []
        self.memory: list[int] = []
        self.n_eval_without_backward = self.n_eval_with_backward = 0
        self.eval_site: tuple[str, int] | None = None
        self.settings: dict[str, Any] = {}
        self._before: tuple[bool, int, tuple[str, int] | None] | None = None
        watch.facts |= {
            "shapes": lambda: [[list(shape), n] for shape, n in self.shapes.items()],
            "padding": lambda: sum(self.padding) / len(self.padding) if self.padding else None,
            "memory": lambda: self.memory[len(self.memory) // 4 :],
            "evaluation": self._evaluation,
            "settings": lambda: self.settings,
        }

    def see(self, module: Any, args: Any, kwargs: Any) -> None:
        """One call, before it is made."""
        watch = self.watch
        if next(module.parameters(), None) is None:
            return  # a criterion
        watch.open()
        while watch.after_first_step and watch.n_steps():
            watch.try_to(watch.after_first_step.pop())
        self._settle_last()
        site = None if module.training else site_of(sys._getframe(1))
        self._before = (module.training, watch.session.backwards, site)
        tensor = first_tensor((*args, *kwargs.values()), watch.torch.Tensor)
        if tensor is None:
            return
        shape = tuple(tensor.shape)
        if module.training and (shape in self.shapes or len(self.shapes) < MAX_SHAPES):
            self.shapes[shape] = self.shapes.get(shape, 0) + 1
        if tensor.is_cuda:
            self.memory.append(_allocated_bytes(watch.torch))
        if not self.settings:
            self.settings = _settings(watch.torch, next(module.parameters()).device.type)
        if len(self.padding) < N_PADDED:
            share = watch.try_to(_padding, tensor)
            if share is not None:
                self.padding.append(share)

    def _settle_last(self) -> None:
        """Whether a backward has followed the call before."""
        if self._before is None:
            return
        was_training, n_backwards, site = self._before
        self._before = None
        if was_training:
            return
        if self.watch.session.backwards > n_backwards:
            self.n_eval_with_backward += 1
        else:
            self.n_eval_without_backward += 1
        self.eval_site = site or self.eval_site

    def _evaluation(self) -> dict[str, Any]:
        self._settle_last()
        return {
            "n_without_backward": self.n_eval_without_backward,
            "n_with_backward": self.n_eval_with_backward,
            "site": self.eval_site,
        }


def _allocated_bytes(torch: Any) -> int:
    """As `memory_allocated` has it, without the sorting of a hundred other figures each time."""
    stats = torch.cuda.memory_stats_as_nested_dict()
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0


def _settings(torch: Any, device: str) -> dict[str, Any]:
    is_on = torch.is_autocast_enabled(device)
    dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.") if is_on else None
    return {"autocast": dtype, "is_profiled": bool(torch.autograd._profiler_enabled())}


def _padding(tensor: Any) -> float | None:
    """The part of a batch of sequences that is one value repeated to the end of its row."""
    if tensor.dim() != 2 or tensor.is_floating_point() or tensor.size(0) < 2 or tensor.size(1) < 8:
        return None
    rows = tensor.detach().cpu()
    ends = rows[:, -1]
    value = ends.mode().values
    if 2 * int((ends == value).sum()) < len(ends):
        return 0.0
    is_real = (rows != value).flip(1)
    lengths = rows.size(1) - is_real.int().argmax(1)
    lengths[~is_real.any(1)] = 0
    return 1.0 - float(lengths.sum()) / int(rows.numel())


def _backwards(watch: Watch) -> None:
    torch = watch.torch
    autograd = torch.autograd
    original = autograd.backward
    seen: dict[str, Any] = {"n": 0, "n_in_autocast": 0, "n_retaining": 0, "site": None}
    watch.facts["backward"] = lambda: seen

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            seen["n"] += 1
            seen["n_in_autocast"] += bool(
                torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
            )
            retains = args[2] if len(args) > 2 else kwargs.get("retain_graph")
            creates = args[3] if len(args) > 3 else kwargs.get("create_graph")
            seen["n_retaining"] += bool(retains and not creates)
            seen["site"] = seen["site"] or site_of(sys._getframe(1))
        return original(*args, **kwargs)

    autograd.backward = backward


def _updates(watch: Watch) -> None:
    import torch.optim.optimizer as optimizer_module

    counts = {"n_updates": 0, "n_without_gradient": 0, "n_parameters": 0}
    scaled = _Scaled(watch)
    watch.facts["updates"] = lambda: {**counts, **scaled.told()}

    def updating(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not counts["n_updates"]:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            counts["n_parameters"] = len(parameters)
            counts["n_without_gradient"] = sum(p.grad is None for p in parameters)
        counts["n_updates"] += 1

    optimizer_module.register_optimizer_step_pre_hook(updating)


class _Scaled:
    """Updates of gradient scalers, and those that found gradients which are not finite.

    A fused optimizer is called in any case and skips the update by itself. What was found lies on
    the device, and is summed up there until the end.
    """

    def __init__(self, watch: Watch) -> None:
        self.n, self.skipped = 0, dict[Any, Any]()
        kind = watch.torch.amp.GradScaler
        original = kind.update

        @functools.wraps(original)
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self.n += 1
            watch.try_to(self._add, scaler)
            return original(scaler, *args, **kwargs)

        kind.update = update

    def _add(self, scaler: Any) -> None:
        for state in scaler._per_optimizer_states.values():
            for device, found in state["found_inf_per_device"].items():
                sum_so_far = self.skipped.get(device)
                self.skipped[device] = found.clone() if sum_so_far is None else sum_so_far + found

    def told(self) -> dict[str, int]:
        """How many there were."""
        most = max((int(found.item()) for found in self.skipped.values()), default=0)
        return {"n_scaled": self.n, "n_skipped": most}


def _mode(watch: Watch) -> None:
    """`train()` and `eval()` of a model that is trained say which part of the loop this is."""
    module_class, roots = watch.torch.nn.Module, watch.session.module_indices
    original = module_class.train

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if id(self) in roots:
            watch.is_training = bool(mode)
        return original(self, mode)

    module_class.train = train
