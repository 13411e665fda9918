"""The ladder on a terminal or in a log: a line a rung, and what came of it all."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean

from hotlap.records.ladder import Ladder, Proof, Rate, Rung, Trial
from hotlap.report.terminal import command_text, quantity, seconds
from hotlap.tuner.objective import OBJECTIVES
from hotlap.tuner.sweep import SweepPoint


def render_title(command: tuple[str, ...], budget_s: float) -> str:
    """What is about to happen."""
    minutes = f"{budget_s / 60:g} {'minute' if budget_s == 60 else 'minutes'}"
    return f"hotlap tune: {command_text(command)} (up to {minutes})"


def settings_text(levers: Mapping[str, str]) -> str:
    """Levers as they are written after --levers."""
    return ",".join(f"{name}={value}" for name, value in levers.items()) or "as it is"


def render_baseline(trials: Sequence[Trial], rate: Rate, objective: str) -> str:
    """The head of the ladder and its first line, and where the time of that step goes."""
    samples_per_step = trials[0].samples_per_step
    energy = rate.energy_per_sample_j
    head = _row(
        "rung",
        "samples/s" if samples_per_step else "steps/s",
        "95 % interval",
        "ratio",
        "memory",
        "J/sample" if energy is not None else None,
        "state",
        "loss, or why not",
    )
    line = _row(
        "baseline",
        quantity(rate.samples_per_s),
        _interval(rate.low, rate.high),
        "1.00x",
        _gib(rate.memory_bytes),
        _number(energy) if energy is not None else None,
        "ok",
        "",
    )
    step = seconds((samples_per_step or 1.0) / rate.samples_per_s)
    shares = [f"{name} {share:.0%}" for name, share in _shares(trials).items() if share >= 0.01]
    return "\n".join(
        [
            f"\n  ratio: times {OBJECTIVES[objective].better} than the baseline as measured last; "
            "%: gain over the best so far",
            head,
            line.rstrip(),
            f"  {'':28} step {step}: {', '.join(shares) or 'its phases are unknown'}",
        ]
    )


def _shares(trials: Sequence[Trial]) -> dict[str, float]:
    """Of each phase in a step, over trials that count alike."""
    known = [trial.phases_s for trial in trials if sum(trial.phases_s.values())]
    names = known[0] if known else ()
    return {name: fmean(one[name] / sum(one.values()) for one in known) for name in names}


def render_rung(rung: Rung, width: int | None = None, *, has_energy: bool = True) -> str:
    """One line, with the reason behind it where the rung was not kept.

    Where the line is longer than `width`, the reason stands below it. Without `has_energy` there
    is no column for it.
    """
    name = f"{rung.lever}={rung.value}" if rung.value else rung.lever
    state = "kept" if rung.kept else ("not kept" if rung.state == "ok" else rung.state)
    text = rung.loss_verdict if rung.kept and rung.samples_per_s else rung.reason
    figures = _row(
        ("+ " if rung.kept else "  ") + name,
        quantity(rung.samples_per_s) if rung.samples_per_s else "",
        _interval(rung.low, rung.high),
        f"{rung.ratio:.2f}x" if rung.ratio else "",
        _gib(rung.memory_bytes),
        _number(rung.energy_per_sample_j) if has_energy else None,
        state,
        "",
    )
    if width and len(figures) + len(text) > width:
        return f"{figures.rstrip()}\n      {text}"
    return (figures + text).rstrip()


def _row(
    name: str,
    rate: str,
    interval: str,
    ratio: str,
    memory: str,
    energy: str | None,
    state: str,
    text: str,
) -> str:
    """A line of the ladder; None is a column that this machine has no figures for."""
    joules = f" {energy:>8}" if energy is not None else ""
    figures = f"{name:<28} {rate:>10} {interval:>16} {ratio:>6} {memory:>9}{joules}"
    return f"  {figures}  {state:<9} {text}"


def _interval(low: float | None, high: float | None) -> str:
    return f"[{_short(low)}, {_short(high)}]" if low and high else ""


def _short(value: float) -> str:
    """A bound in six characters, so that two of them fit their column."""
    if value >= 1e7:
        return f"{value / 1e6:.4g}M"
    if value >= 1e5:
        return f"{value / 1e3:,.0f}k"
    return quantity(value) if value >= 1 else f"{value:.3g}"


def render_ladder(ladder: Ladder, output: str) -> str:
    """What was kept and what it is worth, what was refused and why, and the edits."""
    lines = ["", *_result(ladder)]
    kept = [rung for rung in ladder.rungs if rung.kept]
    if kept:
        lines += ["", f"  kept, and {OBJECTIVES[ladder.objective].without}:"]
        names = [f"{rung.lever}={rung.value}" for rung in kept]
        lines += [f"    {n:<28} {_contribution(r)}" for n, r in zip(names, kept, strict=True)]
    shown_apart = ("not applicable", "not tried", "cut short")
    refused = [r for r in _last_tries(ladder.rungs) if not r.kept and r.state not in shown_apart]
    if refused:
        lines += ["", "  not kept:"]
        for rung in refused:
            name = f"{rung.lever}={rung.value}" if rung.value else rung.lever
            state = "" if rung.state == "ok" else f"{rung.state}: "
            lines.append(f"    {name:<28} {state}{rung.reason}")
            if rung.state in ("crashed", "oom", "hung", "diverged"):
                lines += [f"      | {line}" for line in rung.last_lines[-3:]]
    untried = _without_time(ladder.rungs)
    if untried:
        lines += ["", "  not tried to the end, the budget is too short for them:"]
        wrapped = textwrap.wrap(", ".join(untried), 92, break_on_hyphens=False)
        lines += [f"    {line}" for line in wrapped]
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


def _without_time(rungs: Sequence[Rung]) -> list[str]:
    """What the budget was too short for, unless there was time at another moment."""
    short = [r for r in rungs if r.state in ("not tried", "cut short")]
    tried = {(rung.lever, rung.value) for rung in rungs if rung not in short}
    names = [f"{r.lever}={r.value}" for r in short if (r.lever, r.value) not in tried]
    return list(dict.fromkeys(names))


def _result(ladder: Ladder) -> list[str]:
    objective, ending = ladder.objective, _ending(ladder)
    if ladder.levers:
        interval = ""
        if ladder.ratio_low and ladder.ratio_high:
            interval = f" [{ladder.ratio_low:.2f}, {ladder.ratio_high:.2f}]"
        found = f"{ladder.ratio:.2f}x {OBJECTIVES[objective].better}{interval}: {_from_to(ladder)}"
    else:
        was_tried = any(rung.samples_per_s for rung in ladder.rungs)
        found = "nothing was seen to pay" if was_tried else "no lever was tried to its end"
        found += f": {_figure(ladder.baseline, ladder)} as it is"
    lines = [f"  {found} ({ending})"]
    at_first = _figure(ladder.first_baseline or ladder.baseline, ladder)
    if at_first != _figure(ladder.baseline, ladder):
        lines.append(f"    the baseline was measured again later; at first it was {at_first}")
    return lines


def _ending(ladder: Ladder) -> str:
    """How long it took, and why no longer."""
    took = seconds(ladder.total_s)
    if ladder.status == "complete":
        return took
    if ladder.status == "interrupted":
        return f"{took}, interrupted"
    if ladder.further_try_s is None or ladder.budget_s is None:
        return f"{took}, the budget is too short for all of it"
    left_s = ladder.budget_s - ladder.total_s
    left = f"{left_s:.0f} s of the budget are left" if left_s >= 1 else "the budget is used up"
    return (
        f"{took}; {left}, and a further try with its proof takes about {ladder.further_try_s:.0f} s"
    )


def _from_to(ladder: Ladder) -> str:
    """What was to be bettered, before and after; its price in time where that was another."""
    first, best = ladder.baseline, ladder.best
    rates = f"{quantity(first.samples_per_s)} -> {quantity(best.samples_per_s)} {ladder.unit}"
    if ladder.objective == "time":
        return rates
    return f"{_figure(first, ladder)} -> {_figure(best, ladder)}, at {rates}"


def _figure(measured: Rate, ladder: Ladder) -> str:
    if ladder.objective == "memory":
        return _gib(measured.memory_bytes)
    if ladder.objective == "energy":
        return f"{_number(measured.energy_per_sample_j)} J/sample"
    return f"{quantity(measured.samples_per_s)} {ladder.unit}"


def _contribution(rung: Rung) -> str:
    if rung.contribution is None:
        return f"not measured ({rung.reason})"
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


_SWEEP = "  {:>7} {:>10} {:>12} {:>10} {:>8} {:>9}  {}"


def render_sweep_head() -> str:
    """The names of what a sweep records."""
    return _SWEEP.format("batch", "samples", "samples/s", "memory", "power", "J/sample", "state")


def render_sweep_point(point: SweepPoint) -> str:
    """One batch size."""
    return _SWEEP.format(
        f"x{point.factor}",
        _number(point.samples_per_step),
        quantity(point.samples_per_s) if point.samples_per_s else "",
        _gib(point.memory_bytes),
        f"{point.mean_w:.0f} W" if point.mean_w else "",
        _number(point.energy_per_sample_j),
        f"{point.state}: {point.reason}" if point.reason else point.state,
    ).rstrip()


def render_sweep_end(points: Sequence[SweepPoint]) -> str:
    """Which of them is the fastest."""
    fastest = _fastest(points)
    another = "  another batch is another training: its learning rate is to be chosen anew"
    return f"\n  {fastest};\n{another}" if fastest else ""


def _fastest(points: Sequence[SweepPoint]) -> str:
    """Nothing where samples are not known: steps of another batch are other steps."""
    known = [p for p in points if p.samples_per_s and p.samples_per_step]
    if not known:
        return ""
    best = max(known, key=lambda point: point.samples_per_s or 0.0)
    batch = f"{_number(best.samples_per_step)} samples a step"
    return f"x{best.factor} ({batch}) is the fastest of these, each measured once"
