"""Batch size: more samples in each step, and a learning rate to go with them.

When: memory is left and the device is not kept busy by the batch. Another training: fewer updates
an epoch. So that it stays comparable, the learning rate grows as well: in proportion to the batch
for SGD (the linear scaling rule), with its square root for Adam and its kin; other optimizers keep
theirs. Schedulers that start from the optimizer's rate follow; those with rates of their own, such
as OneCycleLR, set theirs. What a script counts in steps (warm-up, length of the training, how often
it validates) comes later in the data. Values:

    x4       four times the batch of each DataLoader
    x4:128   in a script without one: four times the rows of tensors that it makes with 128 rows

The latter are random images on the device, for instance, or random places in a text.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotlap.levers.common.edits import Edit, change_arguments, tell
from hotlap.levers.common.later import report_once
from hotlap.levers.common.lever import Decision, Lever, Takes
from hotlap.levers.common.own_batches import ask_for_rows, is_users_own, rows_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Site, Workload

FACTORS = tuple(2**doubling for doubling in range(1, 13))
VALUE = re.compile(r"x([0-9]+)(?::([0-9]+))?")
NO_BATCHES = (
    "no DataLoader of the script has batches that grew; 'x2:128' is for tensors that it makes "
    "itself, with 128 rows"
)
LINEAR = {"SGD", "ASGD"}
Rates = dict[Any, Any]
"""By what they were scaled to: what they were. Tensors are known by identity, as keys are."""
SQUARE_ROOT = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "SparseAdam"}


def apply(torch: Any, value: str, process: Process) -> None:
    """Multiply the size of all batches, and the learning rates of optimizers."""
    factor, own_rows = parts_of(value)
    batches = Batches()
    if own_rows is None:
        _scale_loaders(process, factor, batches)
    else:
        _scale_own_batches(torch, process, own_rows, factor, batches)
    rates: Rates = {}
    _scale_rates(process, factor, rates)
    _take_rates_back_where_no_batch_grew(torch, process, rates, batches)


@dataclass(slots=True)
class Batches:
    """Of a training that has begun, or is about to."""

    have_grown: bool = False
    are_left_alone: bool = False
    why_not: str = NO_BATCHES


def _scale_loaders(process: Process, factor: int, batches: Batches) -> None:
    made: set[tuple[int, int]] = set()

    def change(kind: type, arguments: dict[str, Any]) -> None:
        before, dataset = arguments["batch_size"], arguments["dataset"]
        if not isinstance(before, int) or arguments["batch_sampler"] is not None:
            return
        if batches.are_left_alone:
            return
        if (id(dataset), before) in made:
            return  # a loader that a framework makes of one that was changed already
        if arguments["drop_last"] and _length(dataset) < before * factor:
            return  # nothing would be left of the dataset
        arguments["batch_size"] = before * factor
        batches.have_grown = True
        made.add((id(dataset), before * factor))
        process.did(
            f"batches of {type(dataset).__name__} have {before * factor} samples, not {before}"
        )

    process.on_loader(change)


def _scale_own_batches(
    torch: Any, process: Process, before: int, factor: int, batches: Batches
) -> None:
    """Give tensors that the script makes with so many rows more, and see that a model gets them."""
    did = report_once(process)

    def ask(rows: int, function: str, frame: Any) -> int:
        if rows != before or batches.are_left_alone or not is_users_own(torch, frame):
            return rows
        did(f"torch.{function} in line {frame.f_lineno} makes {before * factor} rows, not {before}")
        return before * factor

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        rows = rows_of(torch, args, kwargs)
        if rows == before * factor:
            batches.have_grown = True
        elif rows is not None:
            batches.why_not = f"{type(module).__name__} gets {rows} rows, not {before * factor}"
            process.failed(batches.why_not)

    ask_for_rows(torch, process, ask)
    process.on_model(meet)


def _scale_rates(process: Process, factor: int, rates: Rates) -> None:
    """Scale the learning rate of each optimizer once, also where its class calls its base's."""
    scaled: list[Any] = []

    def change(kind: type, arguments: dict[str, Any]) -> None:
        scale = rate_scale(kind.__name__, factor)
        if scale is None or any(arguments["params"] is one for one in scaled):
            return
        groups = [_scaled_group(one, scale, rates) for one in arguments["params"]]
        scaled[:] = [groups]  # AdamW hands this very list on to Adam
        arguments["params"], before = groups, arguments["lr"]
        arguments["lr"] = _scaled(before, scale, rates)
        process.did(
            f"the learning rate of {kind.__name__} is {float(before * scale):g}, not {before}"
        )

    process.on_optimizer(change)


def _take_rates_back_where_no_batch_grew(
    torch: Any, process: Process, rates: Rates, batches: Batches
) -> None:
    """Before the first update: rates are for larger batches, and these may be nowhere in sight."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    lever, is_checked = process.lever, False

    def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal is_checked
        if not is_checked:
            is_checked = True
            if not batches.have_grown:
                batches.are_left_alone = True
                process.as_lever(lever, process.failed, batches.why_not)
                process.as_lever(lever, _take_rates_back, torch, rates)

    process.on_undo(register_optimizer_step_pre_hook(before_update).remove)


def _take_rates_back(torch: Any, rates: Rates) -> None:
    """In all optimizers that there are, and in what schedulers remember of them.

    A scheduler may have given rates of its own already, which nobody has scaled.
    """
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    for one in [one for one in gc.get_objects() if issubclass(type(one), kinds)]:
        for group in getattr(one, "param_groups", ()):
            first = group.get("initial_lr", group["lr"])
            if first and first in rates:  # some scripts set a rate of 0, and theirs in each step
                group["lr"] = rates.get(group["lr"], group["lr"] * (rates[first] / first))
            if "initial_lr" in group:
                group["initial_lr"] = rates.get(first, first)
        if hasattr(one, "base_lrs"):  # not all schedulers start from the rate they find
            one.base_lrs = [rates.get(rate, rate) for rate in one.base_lrs]


def _scaled(rate: Any, scale: float, rates: Rates) -> Any:
    larger = rate * scale
    rates[larger] = rate
    return larger


def _scaled_group(group: Any, scale: float, rates: Rates) -> Any:
    """A parameter group with a rate of its own has that one scaled."""
    if isinstance(group, dict) and "lr" in group:
        return {**group, "lr": _scaled(group["lr"], scale, rates)}
    return group


def parts_of(value: str) -> tuple[int, int | None]:
    """'x4:128' is 4 and 128, 'x4' is 4 and None."""
    match = VALUE.fullmatch(value)
    if match is None:
        raise ValueError(f"'{value}' is no factor of a batch")
    return int(match[1]), int(match[2]) if match[2] else None


def is_value(value: str) -> bool:
    """Whether it is a factor that makes batches larger."""
    match = VALUE.fullmatch(value)
    return match is not None and int(match[1]) >= 2 and match[2] != "0"


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


def _own_rows(workload: Workload) -> int | None:
    """Of batches that the script makes itself."""
    return next((one.facts["rows"] for one in workload.own_batches), None)


def applies(workload: Workload) -> Decision:
    """Loaders that batch by themselves, or a script that makes tensors of a batch's rows."""
    if _loaders(workload):
        return Decision(True, "a larger batch may keep the device busier")
    if _own_rows(workload) is not None:
        return Decision(True, "the script makes batches of one size itself")
    if workload.loaders:
        return Decision(False, "the script makes its batches itself, and where is not seen")
    return Decision(False, "the script makes no DataLoader, and where its batches are is not seen")


def values(workload: Workload) -> tuple[str, ...]:
    """By where batches come from."""
    rows = None if _loaders(workload) else _own_rows(workload)
    return tuple(f"x{factor}" if rows is None else f"x{factor}:{rows}" for factor in FACTORS)


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """The size of each batch, and the rate of each optimizer that has a rule."""
    factor, own_rows = parts_of(value)
    sizes, rows = list[Wish](), list[Edit]()
    if own_rows is None:
        for one in _loaders(workload):
            size = one.facts["batch_size"]
            sizes.append(Wish(one.site, "DataLoader", "batch_size", str(size), str(size * factor)))
    else:
        text = f"{own_rows * factor} rows, not {own_rows}"
        for one in workload.own_batches:
            rows.append(tell(one.site, f"torch.{one.facts['function']} with {text}"))
    return (*_edits_of(sizes), *rows, *_edits_of_rates(workload, factor))


def _edits_of_rates(workload: Workload, factor: int) -> Iterator[Edit]:
    """In words where a rate is a tensor, and for groups that have rates of their own."""
    rates, told = list[Wish](), list[Edit]()
    for one in workload.optimizers:
        kind, rate = one.facts.get("kind", ""), one.facts.get("lr")
        scale = rate_scale(kind, factor)
        if scale is None:
            continue
        if rate is None:
            told.append(tell(one.site, f"the learning rate of {kind} times {scale:g}"))
        else:
            rates.append(Wish(one.site, kind, "lr", f"{rate:g}", f"{rate * scale:g}"))
        if one.facts.get("has_group_rates"):
            words = f"each lr that a parameter group has of its own times {scale:g}"
            told.append(tell(one.site, words))
    yield from (*_edits_of(rates), *told)


class Wish(NamedTuple):
    """Another value of an argument of a call."""

    site: Site | None
    call: str
    name: str
    before: str
    after: str


def _edits_of(wishes: Sequence[Wish]) -> Iterator[Edit]:
    """In words where a line makes several, for which no one value is right."""
    for one in wishes:
        same_call = [w for w in wishes if one.site and (w.site, w.call) == (one.site, one.call)]
        if len({w.after for w in same_call}) > 1:
            text = f"{one.call}(..., {one.name}={one.after}) where it is {one.before}"
            yield tell(one.site, text)
        else:
            yield change_arguments(one.site, one.call, **{one.name: one.after})


LEVER = Lever(
    name="batch_size",
    summary="larger batches, with the learning rate scaled: linear for SGD, square root for Adam",
    changes="maths",
    risk="danger zone",
    phases=("data", "transfer", "forward", "backward", "optimizer", "other"),
    saves=lambda workload: 0.2,
    values=values,
    takes=Takes("'x' and a whole number of at least 2, as in 'x2' or 'x2:128',", is_value),
    applies=applies,
    apply=apply,
    edit=edit,
    values_go_on=True,
)
