"""fp16: the model's calls in autocast, with 10 bits of mantissa and scaled gradients.

When: GPUs with tensor cores and without bf16 (Volta, Turing), or models that bf16 rounds too much.
The loss is multiplied before each backward and the gradients are divided right after it, so that a
script which clips or reads them finds them unscaled. Where a gradient overflowed, the update
finds no gradients and changes nothing, and the scale is halved. Where there is no optimizer that
could leave an update out, nothing is scaled. Tensors outside all optimizers and models that gather
gradients, such as inputs, keep them scaled. Rounding: three decimal digits, and updates may be
skipped in the first steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from hotlap.levers.common.autocast import (
    autocast_calls,
    autocast_edits,
    best_with,
    has_bf16,
    in_fp32,
)
from hotlap.levers.common.edits import Edit, insert_before, tell
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.optimizers import numbers_of_gradient, parameters_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

FIRST_SCALE = 2.0**10
"""Lower than GradScaler's own 2^16, so that the first updates are made rather than skipped."""
N_UPDATES_TO_DOUBLE = 2000


def apply(torch: Any, value: str, process: Process) -> None:
    """Call fp32 models in fp16 autocast and scale their gradients."""
    import torch.optim.optimizer as optimizer_module

    scaling = Scaling(torch)
    scaling.watch(process)
    handle = optimizer_module.register_optimizer_step_pre_hook(scaling.before_update)
    process.on_undo(handle.remove)
    process.on_model(scaling.meet)
    autocast_calls(torch, process, torch.float16, begin=scaling.begin)


class Scaling:
    """Scales what backward starts from, and keeps gradients of optimizers and models unscaled."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._scaler: Any = None
        self._overflows: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        """By optimizer: for each backward since its last update, whether it overflowed."""
        self._of_models: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        """By model: its parameters, which need not all be in an optimizer."""
        self._n_good = 0
        self._scale = FIRST_SCALE
        """The scaler's own is a tensor on the device, which would have to be waited for."""

    def begin(self, device: str) -> None:
        """Start scaling: a model is met that computes in fp16."""
        if self._scaler is None:
            self._scaler = self._torch.amp.GradScaler(device, init_scale=FIRST_SCALE)

    def meet(self, module: Any, args: Any, kwargs: Any) -> None:
        """Remember a model that is trained."""
        self._of_models[module] = list(module.parameters())

    def watch(self, process: Process) -> None:
        """See optimizers being made, and every backward."""
        optimizer_class = self._torch.optim.Optimizer
        make, run = optimizer_class.__init__, self._torch.autograd.backward

        @functools.wraps(make)
        def constructor(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._overflows[optimizer] = []

        @functools.wraps(run)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if self._scaler is None or not self._overflows:
                run(tensors, *args, **kwargs)
            else:
                self._backward(run, tensors, *args, **kwargs)

        process.replace(optimizer_class, "__init__", constructor)
        process.replace(self._torch.autograd, "backward", backward)

    def _backward(self, run: Callable[..., None], tensors: Any, *args: Any, **kwargs: Any) -> None:
        """Scaled, with what was gathered before scaled for as long."""
        torch = self._torch
        for _, _, gradients in self._gradients():
            torch._foreach_mul_(gradients, self._scale)
        run(self._scaler.scale(tensors), *args, **kwargs)
        for owners, device, gradients in self._gradients():
            overflow = torch.zeros((), device=device)
            inverse = torch.full((), 1.0 / self._scale, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)
            for optimizer in owners:
                self._overflows[optimizer].append(overflow)

    def _gradients(self) -> Iterator[tuple[list[Any], Any, list[Any]]]:
        """All gradients, each once, in lists of one device and dtype: with the optimizers that
        have them, since two may share an encoder, and of a part that is not trained none has."""
        parameters = {id(one): one for some in self._of_models.values() for one in some}
        owners: dict[int, list[Any]] = {key: [] for key in parameters}
        for optimizer in list(self._overflows):
            for parameter in parameters_of(optimizer):
                parameters[id(parameter)] = parameter
                owners.setdefault(id(parameter), []).append(optimizer)
        found: dict[Any, tuple[list[Any], Any, list[Any]]] = {}
        for key, parameter in parameters.items():
            if parameter.grad is not None:
                gradient = numbers_of_gradient(parameter)
                of = tuple(map(id, owners[key]))
                kind = (of, gradient.device, gradient.dtype)
                found.setdefault(kind, (owners[key], gradient.device, []))[2].append(gradient)
        yield from found.values()

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Check before the update, or after the closure that an update calls for its gradients."""
        if self._scaler is None:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._check(optimizer)

        def checked() -> Any:
            result = closure()
            self._check(optimizer)
            return result

        if len(args) > 1:
            return (args[0], checked, *args[2:]), kwargs
        return args, {**kwargs, "closure": checked}

    def _check(self, optimizer: Any) -> None:
        """Drop the gradients where one overflowed: torch's optimizers then do nothing."""
        overflows = self._overflows.get(optimizer) or []
        if any(bool(one) for one in overflows):
            for parameter in parameters_of(optimizer):
                parameter.grad = None
            self._rescale(0.5)
        elif overflows:
            self._n_good += 1
            if self._n_good == N_UPDATES_TO_DOUBLE:
                self._rescale(2.0)
        overflows.clear()

    def _rescale(self, factor: float) -> None:
        self._n_good = 0
        self._scale *= factor
        self._scaler.update(self._scale)


def applies(workload: Workload) -> Decision:
    """An fp32 model on a GPU, whose script scales nothing itself."""
    if workload.device != "cuda":
        return Decision(False, "fp16 is for GPUs; on a CPU bf16 is the half precision that pays")
    if workload.capability is not None and workload.capability < (7, 0):
        return Decision(False, f"{workload.device_name} has no tensor cores; Volta and newer have")
    if workload.uses_scaler:
        return Decision(False, "the script has a GradScaler of its own")
    if not workload.optimizers:
        return Decision(False, "no optimizer of torch's was seen that could leave an update out")
    if any(one.facts.get("kind") == "LBFGS" for one in workload.optimizers):
        return Decision(False, "LBFGS compares losses between its closures, scaling upsets that")
    return in_fp32(workload)


def saves(workload: Workload) -> float:
    """As much as bf16, where the chip has none; where it has, that needs no scaling."""
    return workload.on_device(0.05 if has_bf16(workload).yes else 0.5)


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Autocast around the call, a scaler before the optimizer, and its use in the loop."""
    end = workload.backwards[0].site if workload.backwards else None
    optimizer = workload.optimizers[0].site if workload.optimizers else None
    return (
        insert_before(optimizer, f"scaler = torch.amp.GradScaler(init_scale={FIRST_SCALE})"),
        *autocast_edits(workload, "float16"),
        tell(end, "scaler.scale(loss).backward() in place of loss.backward()"),
        tell(None, "scaler.unscale_(optimizer) before gradients are clipped, if they are"),
        tell(None, "scaler.step(optimizer); scaler.update() in place of optimizer.step()"),
    )


LEVER = Lever(
    name="fp16",
    summary="the model computes in fp16 autocast, with scaled gradients",
    changes="rounding",
    bound=2e-2,
    risk="danger zone",
    phases=("forward", "backward"),
    saves=saves,
    values=lambda workload: ("autocast",),
    takes=one_of("autocast"),
    applies=applies,
    apply=apply,
    edit=edit,
    best_with=lambda workload: () if has_bf16(workload).yes else best_with(workload),
    new_dropout=True,
    instead_of=("bf16",),
    needless_with=("bf16", "pure_bf16"),
)
