"""The ladder on a terminal or in a log: a line a rung, and what came of it all."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence

from hotlap.levers.common.workload import Workload
from hotlap.records.ladder import Ladder, Proof, Rate, Rung, Trial
from hotlap.report.terminal import command_text, quantity, seconds
from hotlap.tuner.sweep import SweepPoint

COLUMNS = "  {:<28} {:>10} {:>16} {:>6} {:>9} {:>8}  {:<9} {}"


def render_header(command: tuple[str, ...], budget_s: float) -> str:
    """What is about to happen."""
    head = COLUMNS.format(
        "rung", "samples/s", "95 % interval", "ratio", "memory", "J/sample", "state", "loss"
    )
    return f"hotlap tune: {command_text(command)} (up to {budget_s / 60:g} min)\n\n{head}"


def settings_text(levers: Mapping[str, str]) -> str:
    """Levers as they are written after --levers."""
    return ",".join(f"{name}={value}" for name, value in levers.items()) or "as it is"


def render_baseline(trial: Trial, rate: float, workload: Workload) -> str:
    """The first line, and where the step's time goes."""
    total = sum(workload.phases_s.values())
    shares = [
        f"{name} {share:.0%}"
        for name, s in workload.phases_s.items()
        if total and (share := s / total) >= 0.01
    ]
    line = COLUMNS.format(
        "baseline",
        quantity(rate),
        "",
        "1.00x",
        _gib(trial.device_peak_bytes or trial.host_peak_bytes),
        _number(trial.energy_per_sample_j),
        "ok",
        "",
    )
    return f"{line.rstrip()}\n  {'':28} step {seconds(total)}: {', '.join(shares)}"


def render_rung(rung: Rung, width: int | None = None) -> str:
    """One line, with the reason behind it where the rung was not kept.

    Where the line is longer than `width`, the reason stands below it.
    """
    name = f"{rung.lever}={rung.value}" if rung.value else rung.lever
    state = "kept" if rung.kept else ("not kept" if rung.state == "ok" else rung.state)
    interval = f"[{quantity(rung.low)}, {quantity(rung.high)}]" if rung.low and rung.high else ""
    text = rung.loss_verdict if rung.kept else rung.reason
    if rung.samples_per_s is None:
        return f"  {name:<28} {state}: {rung.reason}"
    figures = COLUMNS.format(
        ("+ " if rung.kept else "  ") + name,
        quantity(rung.samples_per_s),
        interval,
        f"{rung.ratio:.2f}x" if rung.ratio else "",
        _gib(rung.memory_bytes),
        _number(rung.energy_per_sample_j),
        state,
        "",
    )
    if width and len(figures) + len(text) > width:
        return f"{figures.rstrip()}\n      {text}"
    return (figures + text).rstrip()


def render_ladder(ladder: Ladder, output: str) -> str:
    """What was kept and what it is worth, what was refused and why, and the edits."""
    lines = ["", *_result(ladder)]
    kept = [rung for rung in ladder.rungs if rung.kept]
    if kept:
        lines += ["", "  kept, and what the step loses without it:"]
        names = [f"{rung.lever}={rung.value}" for rung in kept]
        lines += [f"    {n:<28} {_contribution(r)}" for n, r in zip(names, kept, strict=True)]
    shown_apart = ("not applicable", "not tried")
    refused = [r for r in _last_tries(ladder.rungs) if not r.kept and r.state not in shown_apart]
    if refused:
        lines += ["", "  not kept:"]
        for rung in refused:
            name = f"{rung.lever}={rung.value}" if rung.value else rung.lever
            lines.append(f"    {name:<28} {rung.state}: {rung.reason}")
            if rung.state in ("crashed", "oom", "hung"):
                lines += [f"      | {line}" for line in rung.last_lines[-3:]]
    untried = [f"{rung.lever}={rung.value}" for rung in ladder.rungs if rung.state == "not tried"]
    if untried:
        lines += ["", "  not tried, the budget is too short for them:"]
        lines += textwrap.wrap(
            ", ".join(untried), 96, initial_indent="    ", subsequent_indent="    "
        )
    others = [rung for rung in ladder.rungs if rung.state == "not applicable"]
    if others:
        lines += ["", "  not for this training:"]
        lines += [f"    {rung.lever:<28} {rung.reason}" for rung in others]
    if ladder.edits:
        lines += ["", "  the same without hotlap:"]
        lines += [f"    {edit}" for edit in ladder.edits]
    if ladder.diff:
        lines += ["", ladder.diff.rstrip()]
    lines += [f"  note: {note}" for note in ladder.notes]
    settings = "" if output == "hotlap.toml" else f"--settings {shlex.quote(output)} "
    applied = f"holds these settings; `hotlap run {settings}COMMAND` applies them"
    lines += ["", f"  {output} {applied if ladder.levers else 'holds no lever'}"]
    return "\n".join(lines)


def _last_tries(rungs: Sequence[Rung]) -> list[Rung]:
    """Where a lever was measured and tried again later, what came of it then; endings all stay."""
    last = {(rung.lever, rung.value): i for i, rung in enumerate(rungs)}
    return [r for i, r in enumerate(rungs) if r.state != "ok" or i == last[r.lever, r.value]]


def _result(ladder: Ladder) -> list[str]:
    how = {
        "complete": "",
        "out of budget": ", the budget is too short for more",
        "interrupted": ", interrupted",
    }
    if not ladder.levers:
        as_it_is = f"{quantity(ladder.baseline.samples_per_s)} {ladder.unit} as it is"
        if ladder.objective != "time":
            as_it_is = f"{_figure(ladder.baseline, ladder.objective)} as it is"
        was_tried = any(rung.samples_per_s for rung in ladder.rungs)
        found = "nothing was seen to pay" if was_tried else "no lever was tried to its end"
        return [f"  {found}: {as_it_is} ({seconds(ladder.total_s)}{how[ladder.status]})"]
    interval = ""
    if ladder.ratio_low and ladder.ratio_high:
        interval = f" [{ladder.ratio_low:.2f}, {ladder.ratio_high:.2f}]"
    what = {"time": "faster", "memory": "smaller", "energy": "more samples a joule"}
    return [
        f"  {ladder.ratio:.2f}x {what[ladder.objective]}{interval}: {_from_to(ladder)} "
        f"({seconds(ladder.total_s)}{how[ladder.status]})"
    ]


def _from_to(ladder: Ladder) -> str:
    """What was to be bettered, before and after; its price in time where that was another."""
    first, best = ladder.baseline, ladder.best
    rates = f"{quantity(first.samples_per_s)} -> {quantity(best.samples_per_s)} {ladder.unit}"
    if ladder.objective == "time":
        return rates
    return f"{_figure(first, ladder.objective)} -> {_figure(best, ladder.objective)}, at {rates}"


def _figure(measured: Rate, objective: str) -> str:
    if objective == "memory":
        return _gib(measured.memory_bytes)
    return f"{_number(measured.energy_per_sample_j)} J/sample"


def _contribution(rung: Rung) -> str:
    if rung.contribution is None:
        return f"not measured; when it was kept {rung.reason}"
    interval = ""
    if rung.contribution_low and rung.contribution_high:
        interval = f" [{rung.contribution_low:.2f}, {rung.contribution_high:.2f}]"
    return f"{rung.contribution:.2f}x{interval}   loss: {rung.loss_verdict}"


def _gib(n_bytes: float | None) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes else ""


def _number(value: float | None) -> str:
    return f"{value:.3g}" if value is not None else ""


def render_proof(proof: Proof) -> str:
    """Whether both trainings end at the same loss."""
    verdict = "equivalent" if proof.equivalent else "NOT shown to be equivalent"
    return (
        f"\n  to {proof.n_steps} steps on {len(proof.seeds)} seeds: final losses are {verdict}; "
        f"tuned minus baseline {proof.difference:+.4g} [{proof.low:+.4g}, {proof.high:+.4g}], "
        f"within {proof.margin:.4g} counts as equal\n"
        f"    baseline {', '.join(f'{loss:.4g}' for loss in proof.baseline)}\n"
        f"    tuned    {', '.join(f'{loss:.4g}' for loss in proof.tuned)}"
    )


def render_sweep(points: Sequence[SweepPoint]) -> str:
    """A line a batch size."""
    row = "  {:>7} {:>10} {:>12} {:>10} {:>8} {:>9}  {}"
    lines = [row.format("batch", "samples", "samples/s", "memory", "power", "J/sample", "state")]
    lines += [
        row.format(
            f"x{point.factor}",
            _number(point.samples_per_step),
            quantity(point.samples_per_s) if point.samples_per_s else "",
            _gib(point.memory_bytes),
            f"{point.mean_w:.0f} W" if point.mean_w else "",
            _number(point.energy_per_sample_j),
            f"{point.state}: {point.reason}" if point.reason else point.state,
        )
        for point in points
    ]
    return "\n".join(line.rstrip() for line in lines)
