"""Put a Plan together: the layout that was given or the best that was found, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from hotlap.errors import UsageError
from hotlap.planner.budget import SECONDS_A_DAY, Money
from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.collectives import collectives
from hotlap.planner.intervals import MEMORY, around
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout, Recompute, refusal
from hotlap.planner.memory import Bytes, evaluation_memory, largest_micro_batch
from hotlap.planner.predict import Prediction, Scale, causes_of, interval_of, predict
from hotlap.planner.scaling import scaling_curve
from hotlap.planner.search import Found, Space, search
from hotlap.planner.training import Training
from hotlap.records.plan import (
    Plan,
    PlannedCluster,
    PlannedModel,
    PlannedTraining,
    ScalingPoint,
    Value,
)
from hotlap.wording import n_of

SAFE_SHARE = 0.8
"""Of memory: estimates below it did not run out of memory in any of 454 published cases."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that a plan is asked for."""

    model: Model
    gpus: Gpus
    training: Training
    layout: Layout | None
    """None searches for the best."""
    recompute: Recompute | None
    micro_batch: int | None
    total_samples: float | None
    money: Money
    margin: float
    """The share of memory that is left free."""
    rate_flops_per_s: float | None = None
    """Of a GPU, recomputation included, where it is known: time is not predicted then."""
    scale: Scale = field(default_factory=Scale)
    by: Calibration = field(default_factory=Calibration)
    assumptions: tuple[str, ...] = ()
    is_for_the_trainer: bool = False
    """A search leaves out what the reference trainer does not have."""
    machine: str = ""
    """What a measured Machine set; empty where none did."""
    profile: str = ""
    """The cluster whose profile gave the GPUs, and what it calls them."""
    profile_gpu: str = ""

    @property
    def limit_bytes(self) -> float:
        """Of memory that may be used."""
        return self.gpus.memory_bytes * (1 - self.margin)


def best(asked: Question) -> Prediction:
    """The prediction that a plan is made of."""
    return _best(asked, _found(asked))


def _best(asked: Question, found: Found) -> Prediction:
    one = found.best
    if one is None and not found.n_tried:
        micro = f" in micro-batches of {asked.micro_batch}" if asked.micro_batch else ""
        raise UsageError(
            f"--batch is {asked.training.batch}{micro}; no layout of "
            f"{n_of(asked.gpus.n, 'GPU')} divides it into equal parts: give a multiple of their "
            "number"
        )
    if one is None:
        least = min((other.memory_bytes for other in found.others), default=0.0)
        raise UsageError(
            f"no layout of {asked.model.name} fits {asked.gpus.n} {asked.gpus.kind}: the smallest "
            f"needs {least / 2**30:.0f} GiB a GPU, {asked.limit_bytes / 2**30:.0f} are there; more "
            "GPUs, a smaller batch or sequence would help"
        )
    return one


def make_plan(asked: Question) -> Plan:
    """The whole answer."""
    found = _found(asked)
    one = _best(asked, found)
    fits = one.memory_bytes <= asked.limit_bytes and _fits_the_host(asked, one)
    step = _step(asked, one)
    batch = asked.training.batch
    tokens = asked.model.tokens_per_sample
    samples = _rate(batch, step)
    costs = _costs(asked, step)
    return Plan(
        model=_model(asked.model),
        cluster=_cluster(asked, one),
        training=_training(one),
        layout=str(one.layout),
        memory=_memory(one.memory, asked.scale),
        evaluation_memory=_memory(
            evaluation_memory(asked.model, one.training, one.layout), Scale()
        ),
        host_memory=_host_memory(one),
        host_limit_bytes=asked.gpus.host_memory_bytes,
        memory_limit_bytes=asked.limit_bytes,
        margin=asked.margin,
        fits=fits,
        largest_micro_batch=largest_micro_batch(
            asked.model,
            one.training,
            one.layout,
            asked.limit_bytes - asked.scale.memory_bytes,
        ),
        step_s=step,
        causes_s=_causes(asked, one, step),
        collectives=collectives(asked.model, one.training, one.layout),
        samples_per_s=samples,
        tokens_per_s=_times(samples, tokens) if asked.model.unit == "sequences" else None,
        mfu=_utilisation(one.work.model_flops, asked, one, step),
        hfu=_utilisation(one.work.hardware_flops, asked, one, step),
        total_samples=asked.total_samples,
        total_flops=_total_flops(asked),
        goodput=asked.money.goodput if asked.total_samples else None,
        **costs,
        charge_unit=asked.money.charge_unit,
        calibrated_by=asked.scale.run,
        calibrated_by_machine=asked.machine,
        alternatives=found.others,
        scaling=_scaling(asked, one),
        assumptions=asked.assumptions,
        notes=tuple(_notes(asked, one, found)),
    )


def _space(asked: Question) -> Space:
    return Space(
        asked.model,
        asked.gpus,
        asked.training,
        asked.recompute,
        asked.micro_batch,
        asked.limit_bytes,
        asked.by,
        asked.scale,
        asked.is_for_the_trainer,
    )


def _found(asked: Question) -> Found:
    if asked.layout is None:
        return search(_space(asked))
    layout, training = asked.layout, asked.training
    reason = refusal(layout, asked.model, asked.gpus.n, training.batch, training.micro_batch)
    if reason:
        raise UsageError(reason)
    one = predict(asked.model, asked.gpus, training, layout, asked.by, asked.scale)
    return Found(one, (), 1, 1)


def _step(asked: Question, one: Prediction) -> Value:
    if asked.rate_flops_per_s is None:
        return interval_of(one, asked.by)
    seconds = one.work.hardware_flops / (asked.gpus.n * asked.rate_flops_per_s)
    return Value(seconds, seconds, seconds)


def _causes(asked: Question, one: Prediction, step: Value) -> dict[str, float]:
    if asked.rate_flops_per_s is not None:
        return {"at the given rate": step.value}
    return causes_of(one)


def _rate(amount: float, step: Value) -> Value:
    return Value(amount / step.value, amount / step.high, amount / step.low)


def _times(value: Value, factor: float) -> Value:
    return Value(value.value * factor, value.low * factor, value.high * factor)


def _utilisation(flops: float, asked: Question, one: Prediction, step: Value) -> Value:
    return _rate(flops / (asked.gpus.n * one.work.peak_flops_per_s), step)


def _total_flops(asked: Question) -> float | None:
    return 3 * asked.model.flops * asked.total_samples if asked.total_samples else None


def _costs(asked: Question, step: Value) -> dict[str, Any]:
    """Days and what follows from them."""
    names = ("days", "gpu_hours", "energy_kwh", "co2_kg", "price", "charge")
    if not asked.total_samples:
        return dict.fromkeys(names)
    money = asked.money
    n_steps = asked.total_samples / asked.training.batch
    days = _times(step, n_steps / money.goodput / SECONDS_A_DAY)
    hours = _times(days, 24 * asked.gpus.n)
    watts = money.watts or asked.gpus.chip.power_max_w
    energy = _times(hours, watts * money.pue / 1000) if watts else None
    co2, price = money.co2_g_per_kwh, money.price_per_gpu_hour
    return {
        "days": days,
        "gpu_hours": hours,
        "energy_kwh": energy,
        "co2_kg": _times(energy, co2 / 1000) if energy and co2 is not None else None,
        "price": _times(hours, price) if price is not None else None,
        "charge": _times(hours, money.charge_per_gpu_hour) if money.charge_per_gpu_hour else None,
    }


def _memory(memory: Bytes, scale: Scale) -> dict[str, Value]:
    parts = {one.name: getattr(memory, one.name) for one in fields(memory)}
    if scale.memory_bytes:
        parts["measured beside"] = scale.memory_bytes
    total = memory.total + scale.memory_bytes
    half = MEMORY / 2 if scale.is_measured else MEMORY
    return {"total": around(total, half)} | {
        name: around(value, half) for name, value in parts.items()
    }


def _host_memory(one: Prediction) -> dict[str, Value]:
    if not one.host.total:
        return {}
    parts = {name: getattr(one.host, name) for name in ("total", "optimizer", "activations")}
    return {name: around(value, MEMORY) for name, value in parts.items() if value}


def _needed_of_a_node(asked: Question, one: Prediction) -> float:
    return one.host.total * min(asked.gpus.n, asked.gpus.per_node)


def _fits_the_host(asked: Question, one: Prediction) -> bool:
    limit = asked.gpus.host_memory_bytes
    return limit is None or _needed_of_a_node(asked, one) <= limit


def _model(model: Model) -> PlannedModel:
    return PlannedModel(
        model.name,
        model.n_params,
        model.n_active_params,
        len(model.blocks),
        model.unit,
        model.tokens_per_sample,
        3 * model.flops,
    )


def _cluster(asked: Question, one: Prediction) -> PlannedCluster:
    gpus = asked.gpus
    return PlannedCluster(
        gpus.kind,
        gpus.n,
        gpus.per_node,
        gpus.interconnect_gb_per_s,
        gpus.memory_bytes,
        one.work.peak_flops_per_s,
        asked.money.watts or gpus.chip.power_max_w,
        asked.profile,
        asked.profile_gpu,
    )


def _training(one: Prediction) -> PlannedTraining:
    training = one.training
    return PlannedTraining(
        training.batch,
        training.micro_batch,
        one.work.n_micro,
        training.precision_name,
        training.optimizer_name,
        one.layout.recompute,
    )


def _scaling(asked: Question, one: Prediction) -> tuple[ScalingPoint, ...]:
    if asked.rate_flops_per_s is not None:
        return ()
    # A micro-batch that was given is for this number of GPUs; others have fewer samples each.
    space = replace(_space(asked), micro_batch=None)
    return scaling_curve(space, one, asked.total_samples, asked.money.goodput)


def _notes(asked: Question, one: Prediction, found: Found) -> list[str]:
    notes = []
    if asked.gpus.generation not in asked.by.product_reach:
        notes.append(
            f"no measurement of {asked.gpus.generation} GPUs stands behind the times: intervals "
            "are wider"
        )
    used = one.memory_bytes / asked.gpus.memory_bytes
    if SAFE_SHARE < used <= 1 - asked.margin:
        notes.append(
            f"{100 * used:.0f} % of the memory is near its end: an allocator that runs out and "
            "tries again slows the step"
        )
    if one.host.total:
        has = asked.gpus.host_memory_bytes
        notes.append(
            f"offload needs {_needed_of_a_node(asked, one) / 2**30:,.0f} GiB of a node's own "
            f"memory, {f'of {has / 2**30:,.0f}' if has else 'which --host-memory would check'}, "
            f"and {asked.gpus.host_link_gb_per_s:g} GB/s between each GPU and its host"
        )
    if asked.layout is None:
        notes.append(f"{found.n_tried:,} layouts were tried, {found.n_fitting:,} of them fit")
    return notes
