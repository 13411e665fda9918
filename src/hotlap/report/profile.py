"""A Profile as plain text, on a screen or two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hotlap.records.profile import ClassTime, Profile, RankProfile, Site, SiteShare, Skew, TopOp
from hotlap.report.terminal import BAR_WIDTH, seconds, size
from hotlap.wording import n_of, times

NAME_WIDTH = 44
N_TOP = 10
N_LISTED = 8
_NAMESPACES = re.compile(r"^void |\(anonymous namespace\)::|\bat::native::|\bcutlass::")


def render_profile(profile: Profile, folder: Path) -> str:
    """All that a Profile says of its first rank, and of the others what sets them apart."""
    lines: list[str] = []
    if profile.ranks:
        lines += _rank(profile.ranks[0])
    if profile.skew is not None:
        lines += ["", *_skew(profile.skew)]
    notes = dict.fromkeys(
        (*profile.notes, *(note for rank in profile.ranks for note in rank.notes))
    )
    lines += ["", *(f"  note: {note}" for note in notes)]
    traces = [rank.trace for rank in profile.ranks if rank.trace]
    if traces:
        lines.append(f"  trace for https://ui.perfetto.dev: {folder / traces[0]}")
    return "\n".join(lines)


def _rank(rank: RankProfile) -> Iterator[str]:
    if not rank.n_steps:
        yield "  nothing was profiled"
        return
    first = rank.first_step or 0
    n_steps = "one step" if rank.n_steps == 1 else f"{rank.n_steps} steps"
    yield (
        f"  profile of {n_steps} from step {first} on {rank.device}: "
        f"{seconds(rank.step_s)} a step under the profiler"
    )
    yield ""
    yield from _classes(rank)
    yield from _facts(rank)
    yield from _top(rank)
    yield from _products(rank)
    yield from _syncs(rank)
    yield from _compiler(rank)


def _classes(rank: RankProfile) -> Iterator[str]:
    head = f"  {'':<12}{'a step':>10}{'share':>8}{'calls':>8}{'FLOP/s':>10}{'B/s':>10}{'roof':>7}"
    yield head
    for row in rank.classes:
        bar = "#" * round(row.share * BAR_WIDTH)
        yield (_class_row(row) + f"  {bar}").rstrip()
    if rank.outside_s is not None and rank.step_s:
        share = f"{100 * rank.outside_s / rank.step_s:.0f} %"
        yield (
            f"  {'(Python)':<12}{seconds(rank.outside_s):>10}"
            f"  {share} of the step is outside of operators"
        )
    yield ""


def _class_row(row: ClassTime) -> str:
    roof = f"{100 * row.roofline:.0f} %" if row.roofline is not None else "-"
    return (
        f"  {row.name:<12}{seconds(row.seconds):>10}{100 * row.share:>6.0f} %{row.calls:>8.4g}"
        f"{_rate(row.flops_per_s):>10}{_rate(row.bytes_per_s):>10}{roof:>7}"
    )


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g}"


def _facts(rank: RankProfile) -> Iterator[str]:
    idle = rank.idle
    if idle is not None:
        causes = {
            "launch": idle.launch_s,
            "data": idle.data_s,
            "sync": idle.sync_s,
            "collective": idle.collective_s,
        }
        told = ", ".join(f"{name} {seconds(value)}" for name, value in causes.items() if value)
        yield f"  idle         {100 * idle.share:.0f} % of the device's time: {told or 'none'}"
    talk = rank.communication
    if talk is not None:
        yield (
            f"  collectives  {seconds(talk.total_s)} a step in {talk.calls:.4g} calls: "
            f"{seconds(talk.exposed_s)} exposed, {seconds(talk.hidden_s)} behind computing"
        )
    if rank.matmul_dtypes:
        told = ", ".join(f"{name} {seconds(value)}" for name, value in rank.matmul_dtypes.items())
        yield f"  products in  {told}"
    if rank.tensor_core_share is not None:
        yield f"  tensor cores {100 * rank.tensor_core_share:.0f} % of the products' time"
    yield from _memory(rank)


def _memory(rank: RankProfile) -> Iterator[str]:
    memory = rank.memory
    if memory is None:
        return
    named = {
        "weights": memory.weights,
        "buffers": memory.buffers,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "fragmentation": memory.fragmentation,
    }
    told = ", ".join(f"{name} {size(value)}" for name, value in named.items() if value)
    yield f"  memory       {told}"
    if memory.slope is not None:
        grown = f"{'+' if memory.slope > 0 else '-'}{size(round(abs(memory.slope)))}"
        yield f"  memory slope {grown} a step over {n_of(memory.n_slope_steps, 'step')}"


def _top(rank: RankProfile) -> Iterator[str]:
    what = "operators" if rank.device == "cpu" else "kernels"
    yield ""
    yield f"  {'top ' + what:<{NAME_WIDTH}}{'a step':>10}{'share':>8}{'calls':>8}  from"
    for row in rank.top[:N_TOP]:
        place = _from(row.sites[0]) if row.sites else ""
        yield (
            f"  {_short(_named(row)):<{NAME_WIDTH}}{seconds(row.seconds):>10}"
            f"{100 * row.share:>6.0f} %{row.calls:>8.4g}  {place}"
        ).rstrip()


def _named(row: TopOp) -> str:
    """A kernel with its operator: of many kernels the names begin alike, and differ far behind."""
    kernel = _NAMESPACES.sub("", row.name)
    operator = row.operator.removeprefix("aten::")
    return f"{operator}: {kernel}" if operator and row.operator != row.name else kernel


def _products(rank: RankProfile) -> Iterator[str]:
    told = [row for row in rank.matmuls if row.wave_efficiency is not None]
    if not told:
        return
    yield ""
    yield f"  {'big products (m x n x k)':<{NAME_WIDTH}}{'a step':>10}{'waves':>8}{'used':>8}"
    for row in told[:N_LISTED]:
        shape = f"{row.m} x {row.n} x {row.k}" + (f", {row.batch} times" if row.batch > 1 else "")
        yield (
            f"  {shape + ' ' + row.dtype:<{NAME_WIDTH}}{seconds(row.seconds):>10}"
            f"{row.waves:>8.3g}{100 * (row.wave_efficiency or 0):>6.0f} %"
        )


def _syncs(rank: RankProfile) -> Iterator[str]:
    if not rank.syncs:
        return
    waits = "waits for the device" if rank.device != "cpu" else "would wait for a device"
    yield ""
    yield f"  the host {waits} here"
    for row in rank.syncs[:N_LISTED]:
        place = _place(row.site) if row.site else "(unknown line)"
        took = f", {seconds(row.seconds)} a step" if rank.device != "cpu" else ""
        often = "once" if row.calls == 1 else f"{row.calls:.4g} times"
        yield f"    {place}  {row.call}, {often} a step{took}"
    if len(rank.syncs) > N_LISTED:
        yield f"    and {len(rank.syncs) - N_LISTED} places more"


def _compiler(rank: RankProfile) -> Iterator[str]:
    if rank.graph_breaks:
        yield ""
        yield "  graph breaks"
        for broken in rank.graph_breaks[:N_LISTED]:
            yield f"    {broken.file}:{broken.line}  {broken.reason}"
    if rank.recompiles:
        yield ""
        yield "  recompiles"
        for again in rank.recompiles[:N_LISTED]:
            where = f"{again.function} ({again.file}:{again.line})"
            yield f"    {where}, {times(again.n)}: {again.reason}"


def _skew(skew: Skew) -> Iterator[str]:
    yield (
        f"  between ranks: {seconds(skew.transfer_s)} a step of transfer, "
        f"{seconds(skew.skew_s)} of waiting for one another"
    )
    if skew.straggler is not None:
        yield f"  the others wait for rank {skew.straggler}"
    for row in skew.ranks[:N_LISTED]:
        yield (
            f"    rank {row.rank}: step {seconds(row.step_s)}, in collectives "
            f"{seconds(row.collective_s)}, waiting {seconds(row.waiting_s)}"
        )


def _from(share: SiteShare) -> str:
    backward = " (backward)" if share.is_backward else ""
    module = f" in {share.site.module}" if share.site.module else ""
    return f"{_place(share.site)}{module}{backward}"


def _place(site: Site) -> str:
    return f"{site.file}:{site.line}"


def _short(name: str) -> str:
    return name if len(name) < NAME_WIDTH else name[: NAME_WIDTH - 2] + "…"
