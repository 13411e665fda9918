"""Batch size: more samples in each step, and a learning rate to go with them.

When: memory is left and the device is not kept busy by the batch. Another training: fewer updates
an epoch. So that it stays comparable, the learning rate grows as well: in proportion to the batch
for SGD (the linear scaling rule), with its square root for Adam and its kin; other optimizers keep
theirs. Schedulers that start from the optimizer's rate follow; those with rates of their own, such
as OneCycleLR, set theirs. What a script counts in steps (warm-up, length of the training, how often
it validates) comes later in the data.
"""

from __future__ import annotations

import math
from typing import Any

from hotlap.levers.common.edits import Edit, change_arguments
from hotlap.levers.common.lever import Decision, Lever, whole_number
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload

VALUES = ("x2", "x4", "x8")
LINEAR = {"SGD", "ASGD"}
SQUARE_ROOT = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "SparseAdam"}


def apply(torch: Any, value: str, process: Process) -> None:
    """Multiply the batch size of all loaders, and the learning rates of optimizers."""
    factor = factor_of(value)
    made: set[tuple[int, int]] = set()

    def change(kind: type, arguments: dict[str, Any]) -> None:
        before, dataset = arguments["batch_size"], arguments["dataset"]
        if not isinstance(before, int) or arguments["batch_sampler"] is not None:
            return
        if (id(dataset), before) in made:
            return  # a loader that a framework makes of one that was changed already
        if arguments["drop_last"] and _length(dataset) < before * factor:
            return  # nothing would be left of the dataset
        arguments["batch_size"] = before * factor
        made.add((id(dataset), before * factor))
        process.did(
            f"batches of {type(dataset).__name__} have {before * factor} samples, not {before}"
        )

    process.on_loader(change)
    _scale_rates(process, factor)


def _scale_rates(process: Process, factor: int) -> None:
    """Scale the learning rate of each optimizer once, also where its class calls its base's."""
    scaled: list[Any] = []

    def change(kind: type, arguments: dict[str, Any]) -> None:
        scale = rate_scale(kind.__name__, factor)
        if scale is None or any(arguments["params"] is one for one in scaled):
            return
        groups = [_scaled_group(one, scale) for one in arguments["params"]]
        scaled[:] = [groups]  # AdamW hands this very list on to Adam
        arguments["params"], before = groups, arguments["lr"]
        arguments["lr"] = before * scale
        process.did(
            f"the learning rate of {kind.__name__} is {float(before * scale):g}, not {before}"
        )

    process.on_optimizer(change)


def _scaled_group(group: Any, scale: float) -> Any:
    """A parameter group with a rate of its own has that one scaled."""
    if isinstance(group, dict) and "lr" in group:
        return {**group, "lr": group["lr"] * scale}
    return group


def factor_of(value: str) -> int:
    """'x4' is 4."""
    return int(value.removeprefix("x"))


def rate_scale(optimizer: str, factor: int) -> float | None:
    """What the learning rate is multiplied by; None for optimizers without a rule."""
    if optimizer in LINEAR:
        return float(factor)
    return math.sqrt(factor) if optimizer in SQUARE_ROOT else None


def _length(dataset: Any) -> float:
    try:
        return len(dataset)
    except TypeError:
        return math.inf


def _loaders(workload: Workload) -> tuple[Seen, ...]:
    return tuple(
        one
        for one in workload.loaders
        if isinstance(one.facts.get("batch_size"), int) and not one.facts.get("has_batch_sampler")
    )


def applies(workload: Workload) -> Decision:
    """Loaders that batch by themselves."""
    if not workload.loaders:
        return Decision(False, "the script makes no DataLoader")
    if not _loaders(workload):
        return Decision(False, "the script makes its batches itself")
    return Decision(True, "a larger batch may keep the device busier")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """The batch size of each training loader, and the rate of each optimizer that has a rule."""
    factor, edits = factor_of(value), []
    for one in _loaders(workload):
        size = str(one.facts["batch_size"] * factor)
        edits.append(change_arguments(one.site, "DataLoader", batch_size=size))
    for one in workload.optimizers:
        kind, rate = one.facts.get("kind", ""), one.facts.get("lr")
        scale = rate_scale(kind, factor)
        if scale is not None and rate is not None:
            edits.append(change_arguments(one.site, kind, lr=f"{rate * scale:g}"))
    return tuple(edits)


LEVER = Lever(
    name="batch_size",
    summary="larger batches, with the learning rate scaled: linear for SGD, square root for Adam",
    changes="maths",
    risk="danger zone",
    phases=("data", "transfer", "forward", "backward", "optimizer", "other"),
    saves=lambda workload: 0.2,
    values=lambda workload: VALUES,
    takes=whole_number(2, before="x"),
    applies=applies,
    apply=apply,
    edit=edit,
)
