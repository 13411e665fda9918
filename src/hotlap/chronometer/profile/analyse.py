"""The traces and the log of one rank, made into its part of the Profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hotlap.chronometer.profile.communication import collective_spans, find_communication
from hotlap.chronometer.profile.files import TIMES_SUFFIX
from hotlap.chronometer.profile.idle import find_idle
from hotlap.chronometer.profile.intervals import length, union
from hotlap.chronometer.profile.lines import Lines
from hotlap.chronometer.profile.products import find_products, multiprocessors
from hotlap.chronometer.profile.sums import (
    Roof,
    matmul_dtypes,
    tensor_core_share,
    time_by_class,
    top_works,
)
from hotlap.chronometer.profile.trace import Trace
from hotlap.chronometer.profile.work import Window, find_window
from hotlap.records.profile import GraphBreak, MemoryUse, RankProfile, Recompile
from hotlap.wording import n_of

LEAST_SLOPE_STEPS = 6
FindRoof = Callable[[str, dict[str, float]], Roof | None]


@dataclass(frozen=True, slots=True)
class Left:
    """What one process left behind."""

    rank: int
    host: str
    pid: int
    log: Sequence[dict[str, Any]]
    times: Trace | None
    lines: Trace | None
    trace_file: str | None = None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Analysed:
    profile: RankProfile
    spans: list[tuple[float, float]]
    """Of its collectives."""


def analyse(left: Left, find_roof: FindRoof, shorten: Callable[[str], str]) -> Analysed:
    """All that a rank's traces say; `shorten` makes a path readable."""
    window = find_window(left.times) if left.times else None
    lines = Lines.of(left.lines) if left.lines else None
    device = _last(left.log, "device") or "cpu"
    notes = [*left.notes, *(str(entry["note"]) for entry in left.log if "note" in entry)]
    notes += _missing(left, window, device)
    dtypes = matmul_dtypes(window.works, window.n_steps) if window else {}
    roof = find_roof(device, dtypes) if window else None
    if roof is not None:
        notes.append(f"percentages of the roofline are against {roof.source}")
    n_sms = multiprocessors(left.times.devices) if left.times else None
    profile = RankProfile(
        rank=left.rank,
        host=left.host,
        pid=left.pid,
        device=device,
        n_steps=window.n_steps if window else 0,
        n_line_steps=lines.n_steps if lines else 0,
        first_step=_first_step(left.log),
        step_s=window.step_us / 1e6 if window else None,
        outside_s=_outside_s(window, left.times) if window and not window.is_device else None,
        classes=time_by_class(window, roof) if window else (),
        idle=find_idle(left.times, window) if left.times and window else None,
        communication=find_communication(window) if window else None,
        tensor_core_share=tensor_core_share(window) if window else None,
        matmul_dtypes=dtypes,
        top=top_works(window, lines) if window else (),
        matmuls=find_products(window, n_sms, lines) if window else (),
        syncs=lines.syncs() if lines else (),
        graph_breaks=_graph_breaks(left.log, shorten),
        recompiles=_recompiles(left.log, shorten),
        memory=_memory(left.log),
        trace=left.trace_file,
        notes=tuple(dict.fromkeys(notes)),
    )
    return Analysed(profile, collective_spans(window) if window else [])


def _last(log: Sequence[dict[str, Any]], key: str) -> Any:
    return next((entry[key] for entry in reversed(log) if key in entry), None)


def _first_step(log: Sequence[dict[str, Any]]) -> int | None:
    windows = (entry for entry in log if entry.get("window") == TIMES_SUFFIX)
    return next((int(entry["first_step"]) for entry in windows), None)


def _missing(left: Left, window: Window | None, device: str) -> list[str]:
    """Why there is no profile, or only a part of one, in words."""
    orders = _last(left.log, "orders") or {}
    if window is not None:
        if left.lines is None and orders.get("line_steps") and _last(left.log, "note") is None:
            return ["the training ended before the step with stacks: source lines are unknown"]
        if device != "cpu" and not window.is_device:
            return [
                f"the profiler saw no kernel of {device}: another tool (nsys, DCGM, ncu) may hold "
                "its counters, or they are not permitted; times here are the host's"
            ]
        return []
    if any("note" in entry for entry in left.log):
        return []
    if _first_step(left.log) is not None:
        return ["the training ended inside the window, so that nothing of it is known"]
    return [
        "the training ended before the window, which begins after "
        f"{n_of(orders.get('warmup', 0), 'step')}: name an earlier one with --warmup"
    ]


def _outside_s(window: Window, trace: Trace | None) -> float:
    """On a CPU: the part of a step in which no operator ran on the thread that trains."""
    thread = trace.thread if trace else None
    ran = union(
        (max(one.event.start, window.begin), min(one.event.end, window.end))
        for one in window.operators
        if one.parent is None and thread in (None, one.event.thread)
    )
    return (window.end - window.begin - length(ran)) / 1e6 / window.n_steps


def _graph_breaks(
    log: Sequence[dict[str, Any]], shorten: Callable[[str], str]
) -> tuple[GraphBreak, ...]:
    found = Counter(
        (shorten(entry["file"]), int(entry["line"]), str(entry["graph_break"]))
        for entry in log
        if "graph_break" in entry
    )
    return tuple(GraphBreak(*key, n) for key, n in found.most_common())


def _recompiles(
    log: Sequence[dict[str, Any]], shorten: Callable[[str], str]
) -> tuple[Recompile, ...]:
    found = Counter(
        (
            str(entry["function"]),
            shorten(entry["file"]),
            int(entry["line"]),
            str(entry["recompile"]),
        )
        for entry in log
        if "recompile" in entry
    )
    return tuple(Recompile(*key, n) for key, n in found.most_common())


def _memory(log: Sequence[dict[str, Any]]) -> MemoryUse | None:
    found = _last(log, "memory")
    if found is None:
        return None
    held = sum(found[key] for key in ("weights", "buffers", "gradients", "optimizer"))
    peak = found.get("peak")
    samples = found.get("samples", [])
    return MemoryUse(
        weights=found["weights"],
        buffers=found["buffers"],
        gradients=found["gradients"],
        optimizer=found["optimizer"],
        activations=max(peak - held, 0) if peak is not None else None,
        fragmentation=_fragmentation(found),
        peak=peak,
        slope=memory_slope(samples),
        n_slope_steps=len(samples),
    )


def _fragmentation(found: dict[str, Any]) -> int | None:
    """What the allocator took beyond the peak, if it ever lay beside tensors in use.

    Blocks that are free as a whole are kept for later, and given back when memory is short.
    """
    if "reserved" not in found:
        return None
    return int(min(found["reserved"] - found["peak"], found["in_pieces"]))


def memory_slope(samples: Sequence[int]) -> float | None:
    """Bytes a step: the median over all pairs half the steps apart, after the first third.

    An allocator grows in jumps at first; a median of long differences is not led by one of them.
    """
    settled = samples[len(samples) // 3 :]
    if len(settled) < LEAST_SLOPE_STEPS:
        return None
    apart = len(settled) // 2
    return median((settled[i + apart] - settled[i]) / apart for i in range(len(settled) - apart))
