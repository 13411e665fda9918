"""A Run, a list of Runs and a comparison as plain text; colour only on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hotlap.records.run import PHASES, Run, Spread
from hotlap.wording import n_of

BAR_WIDTH = 30


def seconds(value: float | None) -> str:
    """A time with a unit that fits it."""
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    return f"{value * 1e9:.0f} ns"


def quantity(value: float | None, unit: str = "") -> str:
    """A number with thousands separators, or 'unknown'."""
    if value is None:
        return "unknown"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def size(n_bytes: int | None) -> str:
    """Bytes in binary units."""
    if n_bytes is None:
        return "unknown"
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= scale:
            number = n_bytes / scale
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:,.0f} {unit}"
    return f"{n_bytes} B"


def render_run(run: Run, where: str) -> str:
    """All that a Run says, on one screen."""
    lines = [f"hotlap: {run.verdict}", ""]
    if run.step_s and run.spreads_s:
        lines += _phase_table(run, run.step_s)
    lines += [f"  {name:<12} {text}" for name, text in _facts(run) if text]
    lines += [f"  note: {note}" for note in run.notes]
    lines += ["", f"  {where}"]
    return "\n".join(lines)


def _phase_table(run: Run, step: Spread) -> list[str]:
    rows = [f"  {'':<12}{'mean':>10}{'share':>8}{'min':>11}{'median':>11}{'std':>11}"]
    for name in PHASES:
        row = run.spreads_s[name]
        share = row.mean / step.mean if step.mean else 0.0
        bar = "#" * round(share * BAR_WIDTH)
        rows.append(_row(name, row, f"{100 * share:.0f} %") + f"  {bar}".rstrip())
    rows.append(_row("train", run.spreads_s["train"], "") + "  (the step without data)")
    rows.append(_row("step", step, ""))
    return [*rows, ""]


def _row(name: str, row: Spread, share: str) -> str:
    return (
        f"  {name:<12}{seconds(row.mean):>10}{share:>8}"
        f"{seconds(row.min):>11}{seconds(row.median):>11}{seconds(row.std):>11}"
    )


def _facts(run: Run) -> Iterable[tuple[str, str]]:
    steps = f"{run.steps.measured} measured after {run.steps.warmup} of warm-up"
    if run.step_s:
        steps += f"; p10 {seconds(run.step_s.p10)}, p90 {seconds(run.step_s.p90)}"
    yield "steps", steps
    yield "throughput", _throughput(run)
    if run.first_step_load_s is not None:
        yield "first load", f"{seconds(run.first_step_load_s)} for the first batch"
    yield "validation", _validation(run)
    yield "ranks", _ranks(run)
    device = run.memory.device_peak_bytes
    reserved = f" (reserved {size(run.memory.device_reserved_bytes)})" if device is not None else ""
    yield (
        "memory",
        (
            (f"device peak {size(device)}{reserved}, " if device is not None else "")
            + f"host peak {size(run.memory.host_peak_bytes)}"
        ),
    )
    yield "power", _power(run)
    yield "FLOPs", _flops(run)
    yield "loss", _loss(run)
    yield "total", f"{seconds(run.total_s)}, status {run.status}, exit code {run.exit_code}"


def _throughput(run: Run) -> str:
    if run.steps_per_s is None:
        return ""
    samples = f"{quantity(run.samples_per_s)} samples/s, " if run.samples_per_s else ""
    return f"{samples}{quantity(run.steps_per_s)} steps/s"


def _validation(run: Run) -> str:
    if run.validation is None:
        return ""
    one = run.validation
    passes = "1 pass" if one.n == 1 else f"{one.n} passes"
    full = f", about {seconds(one.full_set_s)} for the full set" if one.full_set_s else ""
    return f"{passes}, {n_of(one.batches, 'batch', 'batches')}, {seconds(one.mean_s)} a pass{full}"


def _ranks(run: Run) -> str:
    means = [rank.step_s for rank in run.ranks if rank.step_s is not None]
    if len(means) < 2:
        return ""
    slowest = max(run.ranks, key=lambda rank: rank.step_s or 0.0)
    spread = 100 * (max(means) / min(means) - 1)
    return (
        f"{len(means)} of {run.world_size}; slowest rank {slowest.rank} on {slowest.host}, "
        f"{spread:.1f} % behind the fastest"
    )


def _power(run: Run) -> str:
    power = run.power
    if power.mean_w is None or power.energy_j is None:
        return ""
    samples = f", {quantity(power.samples_per_j)} samples/J" if power.samples_per_j else ""
    peak = f"{power.peak_w:.0f}" if power.peak_w is not None else "unknown"
    return f"{power.mean_w:.0f} W mean, {peak} W peak, {quantity(power.energy_j)} J{samples}"


def _flops(run: Run) -> str:
    if run.flops.per_step is None or run.flops.per_s is None:
        return ""
    mfu = f", MFU {100 * run.flops.mfu:.1f} %" if run.flops.mfu is not None else ""
    return f"{_scaled(run.flops.per_step)}FLOP a step, {_scaled(run.flops.per_s)}FLOP/s{mfu}"


def _scaled(value: float) -> str:
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.4g} {prefix}"
    return f"{value:.4g} "


def _loss(run: Run) -> str:
    known = [(i, loss) for i, loss in enumerate(run.loss) if loss is not None]
    if not known:
        return ""
    return f"{known[0][1]:.6g} at step {known[0][0] + 1}, {known[-1][1]:.6g} at {known[-1][0] + 1}"


def command_text(command: Sequence[str], width: int = 50) -> str:
    """A command as it would be typed, shortened."""
    return _shortened(shlex.join(command), width)


def levers_text(run: Run, width: int = 60) -> str:
    """The levers of a Run behind its command, as they are written after --levers, shortened."""
    text = ",".join(f"{name}={value}" for name, value in run.levers.items())
    return f"  with {_shortened(text, width)}" if text else ""


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def render_comparison(
    a: Run, b: Run, ratio: tuple[float, float | None, float | None], notes: Sequence[str]
) -> str:
    """Two Runs side by side."""
    lines = [
        f"  A  {a.id}  {command_text(a.command)}{levers_text(a)}",
        f"  B  {b.id}  {command_text(b.command)}{levers_text(b)}",
        "",
        f"  {'':<14}{'A':>12}{'B':>12}{'B / A':>9}",
    ]
    lines += [_comparison_row(*row) for row in _comparison_rows(a, b)]
    lines += ["", f"  {_ratio_sentence(*ratio)}"]
    return "\n".join([*lines, *(f"  note: {note}" for note in notes)])


def _comparison_rows(
    a: Run, b: Run
) -> Iterable[tuple[str, float | None, float | None, Callable[[Any], str]]]:
    if a.step_s and b.step_s:
        yield "step", a.step_s.mean, b.step_s.mean, seconds
    if a.phases_s and b.phases_s:
        for phase in PHASES:
            yield phase, getattr(a.phases_s, phase), getattr(b.phases_s, phase), seconds
    yield "samples/s", a.samples_per_s, b.samples_per_s, quantity
    yield "device peak", a.memory.device_peak_bytes, b.memory.device_peak_bytes, size
    yield "host peak", a.memory.host_peak_bytes, b.memory.host_peak_bytes, size
    yield "power W", a.power.mean_w, b.power.mean_w, quantity
    yield "samples/J", a.power.samples_per_j, b.power.samples_per_j, quantity
    yield "MFU", a.flops.mfu, b.flops.mfu, quantity
    n = min(len(a.loss), len(b.loss))
    if n:
        yield f"loss, step {n}", a.loss[n - 1], b.loss[n - 1], quantity


def _comparison_row(name: str, a: float | None, b: float | None, show: Callable[[Any], str]) -> str:
    if a is None and b is None:
        return f"  {name:<14}{'unknown':>12}{'unknown':>12}{'-':>9}"
    ratio = f"{b / a:.3f}" if a and b is not None else "-"
    return f"  {name:<14}{show(a):>12}{show(b):>12}{ratio:>9}"


def _ratio_sentence(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"B's step is {value:.3f} times as fast; too few steps to tell that from noise"
    interval = f"95 % interval {low:.3f} to {high:.3f}"
    if low <= 1.0 <= high:
        return f"no difference outside the noise: B is {value:.3f} times as fast as A ({interval})"
    sentence = f"B is {value:.3f} times as fast as A ({interval})"
    return f"{sentence}: outside the noise of the steps; measure both again to rule out drift"
