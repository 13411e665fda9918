"""Noise of the size of rounding on every gradient: no lever to keep, but the guard's yardstick.

How far rounding drives two trainings apart depends on the training: one of a large learning rate
amplifies a difference tenfold in some steps, another one hardly at all. So the baseline is run once
more with its gradients' elements changed at random by about as much as half precision changes
them, and what comes of that is what may come of rounding.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.lever import Decision, Lever
from hotlap.levers.common.optimizers import parameters_of
from hotlap.levers.common.process import Process

NAME = "_noise"
HALF_PRECISION = "0.01"
"""Relative standard deviation of an element: some roundings to 8 bits, added up."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Multiply each element of each gradient by a number near one before every update."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    size = float(value)
    generators: dict[Any, Any] = {}

    def disturb(optimizer: Any, args: Any, kwargs: Any) -> None:
        for gradient in (parameter.grad for parameter in parameters_of(optimizer)):
            if gradient is None or not gradient.is_floating_point():
                continue
            if gradient.device not in generators:  # its own: the training's draws stay as they are
                generators[gradient.device] = torch.Generator(gradient.device).manual_seed(12345)
            factor = torch.empty_like(gradient)
            gradient.mul_(factor.normal_(1.0, size, generator=generators[gradient.device]))

    process.on_undo(register_optimizer_step_pre_hook(disturb).remove)
    process.did("noise of the size of rounding is put on the gradients")


NOISE = Lever(
    name=NAME,
    summary="noise of the size of rounding on every gradient",
    changes="maths",
    risk="danger zone",
    phases=(),
    saves=lambda workload: 0.0,
    values=lambda workload: (HALF_PRECISION,),
    applies=lambda workload: Decision(False, "it is the guard's yardstick"),
    apply=apply,
    edit=lambda value, workload: (),
)
