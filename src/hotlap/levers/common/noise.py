"""Noise of the size of rounding on weights and gradients: the guard's yardstick, no lever to keep.

How far rounding drives two trainings apart depends on the training: one of a large learning rate
amplifies a difference tenfold in some steps, another one hardly at all. So the baseline is run once
more, its first weights and each gradient changed at random, element by element, by about as much as
half precision changes them; what comes of that is what may come of rounding. The gradients alone
would not do: an optimizer like Adam averages their noise away.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.lever import Decision, Lever
from hotlap.levers.common.optimizers import numbers_of_gradient, parameters_of
from hotlap.levers.common.process import Process

NAME = "_noise"
HALF_PRECISION = "0.01"
"""Relative standard deviation of a gradient's element: some roundings to 8 bits, added up."""
WEIGHTS = 2**-8
"""The same of a weight, which is rounded once."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Multiply weights before the first call, and gradients before each update, by about one."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    size, lever = float(value), process.lever
    generators: dict[Any, Any] = {}

    def disturb(tensor: Any, size: float) -> None:
        if not tensor.is_floating_point():
            return
        if tensor.device not in generators:  # its own: the training's draws stay as they are
            generators[tensor.device] = torch.Generator(tensor.device).manual_seed(12345)
        factor = torch.empty_like(tensor)
        tensor.mul_(factor.normal_(1.0, size, generator=generators[tensor.device]))

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                disturb(parameter, WEIGHTS)

    def disturb_gradients(optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                disturb(numbers_of_gradient(parameter), size)

    def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
        process.as_lever(lever, disturb_gradients, optimizer)

    process.on_model(meet)
    process.on_undo(register_optimizer_step_pre_hook(before_update).remove)
    process.did("noise of the size of rounding is put on weights and gradients")


NOISE = Lever(
    name=NAME,
    summary="noise of the size of rounding on weights and gradients",
    changes="maths",
    risk="danger zone",
    phases=(),
    saves=lambda workload: 0.0,
    values=lambda workload: (HALF_PRECISION,),
    applies=lambda workload: Decision(False, "it is the guard's yardstick"),
    apply=apply,
    edit=lambda value, workload: (),
)
