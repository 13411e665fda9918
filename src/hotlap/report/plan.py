"""A Plan on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotlap.machine.chips import CHIPS
from hotlap.planner.budget import ComputeOptimal
from hotlap.planner.cluster import KINDS
from hotlap.planner.runs import Check
from hotlap.planner.scaling import EFFICIENT
from hotlap.records.plan import Alternative, Plan, ScalingPoint, Value
from hotlap.records.run import Run
from hotlap.report.terminal import seconds

GIB = 2**30
BAR = 24
N_ALTERNATIVES = 5


def render_plan(plan: Plan) -> str:
    """All that a plan says."""
    lines = [*head_of(plan), "", *_memory(plan), "", *_time(plan)]
    lines += _costs(plan)
    if plan.alternatives:
        lines += ["", *_alternatives(plan.alternatives)]
    if len(plan.scaling) > 1:
        lines += ["", *_scaling(plan.scaling, plan.cluster.gpus)]
    lines.append("")
    if plan.calibrated_by_machine:
        lines.append(f"  calibrated by a Machine, {plan.calibrated_by_machine}")
    lines += [f"  assumed: {text}" for text in plan.assumptions]
    lines += [f"  note: {text}" for text in plan.notes]
    return "\n".join(lines)


def head_of(plan: Plan) -> Iterable[str]:
    """What is planned, where and how: three lines."""
    model, cluster, training = plan.model, plan.cluster, plan.training
    active = ""
    if model.active_parameters != model.parameters:
        active = f" ({count(model.active_parameters)} a token)"
    tokens = f" of {model.tokens_per_sample:,} tokens" if model.unit == "sequences" else ""
    nodes = -(-cluster.gpus // cluster.gpus_per_node)
    where = f", {nodes} nodes" if nodes > 1 else ""
    where += f" of {cluster.profile}" if cluster.profile else ""
    calibrated = f", calibrated by Run {plan.calibrated_by}" if plan.calibrated_by else ""
    yield (
        f"hotlap plan: {model.name}, {count(model.parameters)} parameters{active}, on "
        f"{cluster.gpus} {cluster.gpu}{where}{calibrated}"
    )
    yield (
        f"  {training.batch:,} {model.unit}{tokens} a step, {training.precision}, "
        f"{training.optimizer}; 90 % intervals in brackets"
    )
    yield (
        f"  layout {plan.layout}; micro-batch {training.micro_batch} x {training.micro_batches}, "
        f"recompute {training.recompute}"
    )


def _memory(plan: Plan) -> Iterable[str]:
    total = plan.memory["total"]
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    yield (
        f"  memory a GPU   {total.value / GIB:.1f} GiB [{total.low / GIB:.1f}, "
        f"{total.high / GIB:.1f}] of {plan.cluster.memory_bytes / GIB:.0f}: {verdict} with "
        f"{100 * plan.margin:.0f} % left free; largest micro-batch {plan.largest_micro_batch}"
    )
    parts = [
        f"{name} {value.value / GIB:.2f}"
        for name, value in plan.memory.items()
        if name != "total" and value.value >= 0.005 * GIB
    ]
    for start in range(0, len(parts), 6):
        yield f"                 {', '.join(parts[start : start + 6])}"
    evaluation = plan.evaluation_memory["total"].value / GIB
    yield f"                 in evaluation {evaluation:.1f} GiB"
    if plan.host_memory:
        host = ", ".join(f"{name} {one.value / GIB:.1f}" for name, one in plan.host_memory.items())
        yield f"                 in the host's memory, a GPU: {host} GiB"


def _time(plan: Plan) -> Iterable[str]:
    step = plan.step_s
    yield f"  step           {seconds(step.value)} [{seconds(step.low)}, {seconds(step.high)}]"
    for name, value in plan.causes_s.items():
        part = value / step.value
        if part >= 0.001:
            bar = "#" * round(part * BAR)
            yield f"    {name:<18} {seconds(value):>9} {100 * part:>4.0f} %  {bar}".rstrip()
    rates = f"{interval(plan.samples_per_s)} {plan.model.unit}/s"
    if plan.tokens_per_s:
        rates += f", {interval(plan.tokens_per_s)} tokens/s"
    yield f"  rate           {rates}"
    yield f"                 MFU {percent(plan.mfu)}, HFU {percent(plan.hfu)}"


def _costs(plan: Plan) -> Iterable[str]:
    if plan.days is None or plan.gpu_hours is None:
        return
    flops = f", {plan.total_flops:.3g} FLOP" if plan.total_flops else ""
    yield (
        f"  whole training {interval(plan.days)} days at goodput {plan.goodput:g}, "
        f"{interval(plan.gpu_hours)} GPU-hours{flops}"
    )
    parts = []
    if plan.energy_kwh:
        parts.append(f"{interval(plan.energy_kwh)} kWh")
    if plan.co2_kg:
        parts.append(f"{interval(plan.co2_kg)} kg CO2")
    if plan.price:
        parts.append(f"price {interval(plan.price)}")
    if plan.charge:
        parts.append(f"charged {interval(plan.charge)} {plan.charge_unit}".rstrip())
    if parts:
        yield f"                 {', '.join(parts)}"


def _alternatives(alternatives: Sequence[Alternative]) -> Iterable[str]:
    yield "  other layouts"
    for one in alternatives[:N_ALTERNATIVES]:
        step = seconds(one.step_s) if one.step_s else "-"
        layout = f"{one.layout}, micro-batch {one.micro_batch}, recompute {one.recompute}"
        yield f"    {layout:<64} {step:>8} {one.memory_bytes / GIB:>6.1f} GiB  {one.reason}"


def _scaling(points: Sequence[ScalingPoint], here: int) -> Iterable[str]:
    efficient = [one.gpus for one in points if one.is_efficient]
    yield (
        f"  scaling at this batch: {min(efficient)} to {max(efficient)} GPUs keep "
        f"{100 * EFFICIENT:.0f} % of the best samples a GPU"
    )
    for one in points:
        mark = " <- this plan" if one.gpus == here else ""
        bar = "#" * round(one.efficiency * BAR)
        days = f"{one.days:>9.3g} days {one.gpu_hours:>10,.0f} GPU-h" if one.days else ""
        yield (
            f"    {one.gpus:>6} GPUs {one.samples_per_s:>10.4g}/s {100 * one.efficiency:>4.0f} % "
            f"{bar:<{BAR}} {days}{mark}"
        ).rstrip()


def render_arithmetic(plan: Plan) -> str:
    """A plan from a number of parameters alone."""
    states = sum(plan.memory[name].value for name in ("weights", "gradients", "optimizer"))
    lines = [
        f"hotlap plan: {plan.model.name}, {plan.training.precision}, {plan.training.optimizer}, on "
        f"{plan.cluster.gpus} {plan.cluster.gpu}, layout {plan.layout}",
        f"  states a GPU   {states / GIB:.1f} GiB: "
        + ", ".join(
            f"{name} {plan.memory[name].value / GIB:.2f}"
            for name in ("weights", "gradients", "optimizer")
        ),
        *_costs(plan),
        "",
        *(f"  assumed: {text}" for text in plan.assumptions),
    ]
    return "\n".join(lines)


def render_budget(plan: Plan, hours: float, flops: float, best: ComputeOptimal) -> str:
    """What a number of GPU-hours buys."""
    tokens = flops / plan.model.flops_per_sample * plan.model.tokens_per_sample
    bought = (
        f"{count(tokens)} tokens of this model"
        if plan.model.unit == "sequences"
        else f"{count(tokens)} images through this model"
    )
    return (
        f"\n  budget         {hours:,.0f} GPU-hours, {flops:.3g} FLOP: {bought}\n"
        f"                 a language model is best at {count(best.n_params)} parameters on "
        f"{count(best.n_tokens)} tokens (Chinchilla), loss {best.loss:.3f}"
    )


def render_check(plan: Plan, run: Run, rows: Sequence[Check]) -> str:
    """Predicted beside measured."""
    lines = [
        f"hotlap plan: {plan.model.name} against Run {run.id}",
        f"  {'':<12}{'predicted':>12}{'90 % interval':>26}{'measured':>12}{'error':>9}",
    ]
    for row in rows:
        held = "inside" if row.is_inside else "OUTSIDE"
        between = f"[{row.low:.4g}, {row.high:.4g}]"
        lines.append(
            f"  {row.name:<12}{row.predicted:>12.4g}{between:>26}{row.measured:>12.4g}"
            f"{100 * row.error:>8.1f}% {held}"
        )
    return "\n".join(lines)


def render_gpus() -> str:
    """The kinds of GPUs and their figures."""
    chips = {chip.name: chip for chip in CHIPS}
    lines = [
        f"{'--gpu':<18}{'memory':>8}{'16-bit':>9}{'bandwidth':>11}{'link':>7}{'power':>7}  chip",
        f"{'':<18}{'GiB':>8}{'TFLOP/s':>9}{'GB/s':>11}{'GB/s':>7}{'W':>7}",
    ]
    for name, kind in KINDS.items():
        chip = chips[kind.chip]
        rate = f"{chip.dense_16bit_flops_per_s / 1e12:.0f}" if chip.dense_16bit_flops_per_s else "-"
        power = f"{chip.power_max_w:.0f}" if chip.power_max_w else "-"
        lines.append(
            f"{name:<18}{chip.memory_bytes / GIB:>8.0f}{rate:>9}"
            f"{chip.bandwidth_bytes_per_s / 1e9:>11,.0f}{kind.link_gb_per_s:>7.0f}{power:>7}"
            f"  {chip.name}"
        )
    return "\n".join(lines)


def count(value: float) -> str:
    """A large number with its unit."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g}"


def interval(value: Value) -> str:
    """A number and its interval."""
    if value.low == value.high:
        return _short(value.value)
    return f"{_short(value.value)} [{_short(value.low)}, {_short(value.high)}]"


def percent(value: Value) -> str:
    """A share and its interval."""
    return f"{100 * value.value:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
