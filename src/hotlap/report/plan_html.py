"""A Plan as one HTML page with its plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from hotlap import __version__
from hotlap.machine.chips import CHIPS
from hotlap.planner.cluster import KINDS
from hotlap.planner.scaling import EFFICIENT
from hotlap.records.plan import Plan, ScalingPoint, Value
from hotlap.report import page, svg
from hotlap.report.plan import GIB, count, head_of, percent
from hotlap.report.terminal import quantity, seconds


def plan_page(plan: Plan) -> str:
    """The whole document."""
    first, *below = head_of(plan)
    title = first.removeprefix("hotlap plan: ")
    sections = [
        f"<h1>{escape(title)}</h1>",
        *(page.paragraph(line.strip(), "soft") for line in below),
        _verdict(plan),
        page.facts(list(_facts(plan))),
        _memory(plan),
        _step(plan),
    ]
    if len(plan.scaling) > 1:
        sections.append(_scaling(plan))
    if plan.alternatives:
        sections.append(_layouts(plan))
    sections += [_collectives(plan)] if plan.collectives else []
    sections.append(page.section("Assumptions and sources", page.bullets(list(_sources(plan)))))
    return page.page(f"hotlap plan: {plan.model.name}", sections)


def _verdict(plan: Plan) -> str:
    total, limit = plan.memory["total"], plan.cluster.memory_bytes
    verdict = "fits" if plan.fits else "does not fit"
    return page.paragraph(
        f"It {verdict}: {_gib(total)} GiB of {limit / GIB:.0f} on the GPU that needs most, with "
        f"{100 * plan.margin:.0f} % to be left free. The largest micro-batch that fits is "
        f"{plan.largest_micro_batch}.",
        "verdict" if plan.fits else "verdict bad",
    )


def _facts(plan: Plan) -> Iterable[tuple[str, str, str]]:
    """The headline: a number, and its interval below it."""
    yield "step", seconds(plan.step_s.value), _between(plan.step_s, seconds)
    rate, unit = plan.samples_per_s, f"{plan.model.unit}/s"
    if plan.tokens_per_s:
        rate, unit = plan.tokens_per_s, "tokens/s"
    yield unit, count(rate.value), _between(rate, count)
    yield "memory a GPU", f"{plan.memory['total'].value / GIB:.1f} GiB", "of the one with most"
    yield "MFU", f"{100 * plan.mfu.value:.1f} %", percent(plan.hfu) + " HFU"
    costs = {
        "whole training": (plan.days, "days"),
        "GPU-hours": (plan.gpu_hours, ""),
        "energy": (plan.energy_kwh, "kWh"),
        "CO2": (plan.co2_kg, "kg"),
        "price": (plan.price, ""),
        "charged": (plan.charge, plan.charge_unit),
    }
    for name, (value, unit) in costs.items():
        if value:
            yield name, quantity(value.value, unit), _between(value, quantity)


def _between(value: Value, show: Callable[[float], str]) -> str:
    return "" if value.low == value.high else f"{show(value.low)} to {show(value.high)}"


def _gib(value: Value) -> str:
    return f"{value.value / GIB:.1f} [{value.low / GIB:.1f}, {value.high / GIB:.1f}]"


def _memory(plan: Plan) -> str:
    parts = {name: one for name, one in plan.memory.items() if name != "total"}
    total = plan.memory["total"]
    rows, so_far = [], 0.0
    for name, one in parts.items():
        size = one.value / GIB
        rows.append(svg.Bar(name, so_far, so_far + size, f"{size:.2f} GiB"))
        so_far += size
    low, high = total.low / GIB, total.high / GIB
    rows.append(svg.Bar("total", 0, so_far, f"{so_far:.1f} GiB", low, high, is_total=True))
    memory, limit = plan.cluster.memory_bytes / GIB, plan.memory_limit_bytes / GIB
    marks = [
        svg.Mark(limit, f"{limit:.1f} GiB: with {100 * plan.margin:.0f} % left free"),
        svg.Mark(memory, f"{memory:.1f} GiB: the GPU's memory"),
    ]
    words = svg.Words(
        "memory",
        "Memory of one GPU by category",
        f"Each bar begins where the one above ends; together {_gib(total)} GiB of {memory:.1f}.",
        "GiB",
    )
    evaluation = plan.evaluation_memory
    numbers = page.table(
        ("category", "GiB", "low", "high", "in evaluation"),
        [
            (name, *_three(one, GIB), f"{evaluation[name].value / GIB:.2f}" if name in evaluation
             else "-")
            for name, one in (*parts.items(), ("total", total))
        ],
    )  # fmt: skip
    drawn = page.behind(svg.bars(words, rows, marks), numbers)
    return page.section("Memory", drawn, *_host(plan))


def _host(plan: Plan) -> Iterable[str]:
    """Where something lies with the host."""
    if plan.host_memory:
        rows = [(name, *_three(one, GIB)) for name, one in plan.host_memory.items()]
        yield page.table(("in the host's memory, a GPU", "GiB", "low", "high"), rows)


def _three(value: Value, unit: float = 1.0) -> tuple[str, str, str]:
    return tuple(f"{one / unit:.2f}" for one in (value.value, value.low, value.high))  # type: ignore[return-value]


def _step(plan: Plan) -> str:
    step = plan.step_s
    rows, so_far = [], 0.0
    for name, value in plan.causes_s.items():
        share = 100 * value / step.value
        rows.append(svg.Bar(name, so_far, so_far + value, f"{seconds(value)}, {share:.0f} %"))
        so_far += value
    text = f"{seconds(step.value)} [{seconds(step.low)}, {seconds(step.high)}]"
    rows.append(svg.Bar("step", 0, step.value, seconds(step.value), step.low, step.high, True))
    words = svg.Words(
        "step",
        "Time of a step by cause",
        f"Each bar begins where the one above ends; together {text}.",
        "seconds",
    )
    numbers = page.table(
        ("cause", "seconds", "share %"),
        [(name, f"{v:.4g}", f"{100 * v / step.value:.1f}") for name, v in plan.causes_s.items()]
        + [("step", f"{step.value:.4g} [{step.low:.4g}, {step.high:.4g}]", "100")],
    )
    return page.section("Step", page.behind(svg.bars(words, rows), numbers))


def _scaling(plan: Plan) -> str:
    unit = plan.model.unit
    points = plan.scaling
    best = max(one.samples_per_s / one.gpus for one in points)
    efficient = [one.gpus for one in points if one.is_efficient]
    span = f"{min(efficient):,} to {max(efficient):,} GPUs"
    kept = f"{100 * EFFICIENT:.0f} % of the best"
    words = svg.Words(
        "scaling",
        f"{unit.capitalize()} a second that each GPU gives, by the number of GPUs",
        f"The batch stays the same. {span} keep {kept}; this plan has {plan.cluster.gpus:,}. The "
        "band is the 90 % interval.",
        f"GPUs; upwards {unit} a second and GPU",
    )
    drawn = svg.curve(
        words,
        [_point(one, plan.cluster.gpus) for one in points],
        svg.Mark(EFFICIENT * best, kept),
        f"well used: {span}",
    )
    numbers = page.table(
        ("GPUs", "layout", f"{unit}/s", "low", "high", "efficiency %", "days", "GPU-hours"),
        [
            (
                f"{one.gpus:,}",
                one.layout,
                *(f"{x:.4g}" for x in (one.samples_per_s, one.low, one.high)),
                f"{100 * one.efficiency:.0f}",
                f"{one.days:.3g}" if one.days else "-",
                f"{one.gpu_hours:,.0f}" if one.gpu_hours else "-",
            )
            for one in points
        ],
        n_words=2,
    )
    said = page.paragraph(f"At this batch {span} keep {kept} rate of a GPU.")
    return page.section("How many GPUs", said, page.behind(drawn, numbers))


def _point(one: ScalingPoint, here: int) -> svg.Point:
    n = one.gpus
    rates = (one.samples_per_s / n, one.low / n, one.high / n)
    return svg.Point(f"{n:,}", *rates, one.is_efficient, n == here)


def _layouts(plan: Plan) -> str:
    chosen = f"{plan.layout}, micro-batch {plan.training.micro_batch}, recompute "
    chosen += plan.training.recompute
    step = plan.step_s
    bar = svg.Bar(f"{chosen}: this plan", 0, step.value, seconds(step.value), is_total=True)
    rows = [bar]
    total = plan.memory["total"].value / GIB
    listed = [(chosen, f"{step.value:.4g}", f"{total:.1f}", "this plan")]
    for one in plan.alternatives:
        name = f"{one.layout}, micro-batch {one.micro_batch}, recompute {one.recompute}"
        text = seconds(one.step_s) if one.step_s else "does not fit"
        rows.append(svg.Bar(name, 0, one.step_s or 0.0, text))
        shown = f"{one.step_s:.4g}" if one.step_s else "-"
        listed.append((name, shown, f"{one.memory_bytes / GIB:.1f}", one.reason))
    words = svg.Words(
        "layouts",
        "Step time of the layouts that were compared",
        "The best of each kind, the fastest first; after them those that do not fit.",
        "seconds",
    )
    columns = ("layout", "why", "step s", "GiB a GPU")
    numbers = page.table(columns, [(a, d, b, c) for a, b, c, d in listed], n_words=2)
    return page.section("Layouts", page.behind(svg.listed(words, rows), numbers))


def _collectives(plan: Plan) -> str:
    rows = [(name, f"{n:,}") for name, n in plan.collectives.items()]
    return page.section(
        "Collectives a step, of a rank of the first stage", page.table(("kind", "times"), rows)
    )


def _sources(plan: Plan) -> Sequence[str]:
    lines = [f"Assumed: {text}" for text in plan.assumptions]
    if plan.calibrated_by:
        lines.append(f"Calibrated by Run {plan.calibrated_by}.")
    if plan.calibrated_by_machine:
        lines.append(f"Calibrated by a Machine, {plan.calibrated_by_machine}.")
    lines += [f"Note: {text}" for text in plan.notes]
    kind = KINDS.get(plan.cluster.gpu)
    chip = next((one for one in CHIPS if kind and one.name == kind.chip), None)
    if chip:
        lines.append(f"Figures of {chip.name}: {chip.source}")
    return [
        *lines,
        "Activations: Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198; sharding: "
        "Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054.",
        "What GPUs and networks reach of their nominal rates is fitted on published measurements "
        "of 2021 to 2023; an interval holds nine of ten of them.",
        f"hotlap {__version__}",
    ]
