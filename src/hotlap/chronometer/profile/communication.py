"""Collectives: how much of their time is hidden behind computing, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from hotlap.chronometer.profile.intervals import length, overlap, union
from hotlap.chronometer.profile.work import Window
from hotlap.records.profile import Communication, RankWait, Skew

LEVEL = 0.05
"""Ranks whose waits differ by less than this share of the step are level."""


def collective_spans(window: Window) -> list[tuple[float, float]]:
    """Begin and end of every collective, in the order they began."""
    if window.is_device:
        found = [work.event for work in window.works if work.kind == "collective"]
    else:
        # A backend's own range is the work itself; the operator only hands it over.
        collectives = [one for one in window.operators if one.kind == "collective"]
        backends = [one for one in collectives if "::" not in one.name]
        outermost = [one for one in collectives if one.parent is None]
        found = [one.event for one in backends or outermost]
    return sorted((event.start, event.end) for event in found)


def find_communication(window: Window) -> Communication | None:
    """Seconds a step in collectives; None where there are none."""
    spans = collective_spans(window)
    if not spans:
        return None
    busy = union(
        (work.event.start, work.event.end)
        for work in window.works
        if work.kind != "collective" and not _is_around_collectives(window, work.event.name)
    )
    total = union(spans)
    hidden = length(overlap(total, busy))
    scale = 1e-6 / window.n_steps
    return Communication(
        total_s=length(total) * scale,
        exposed_s=(length(total) - hidden) * scale,
        hidden_s=hidden * scale,
        calls=len(spans) / window.n_steps,
    )


def _is_around_collectives(window: Window, name: str) -> bool:
    """On a CPU an autograd node may hold the collective that its hook starts."""
    return not window.is_device and "::" in name and name.startswith("autograd::")


def find_skew(
    spans: Mapping[int, Sequence[tuple[float, float]]],
    n_steps: int,
    steps_s: Mapping[int, float | None],
) -> tuple[Skew | None, str]:
    """Transfer against waiting, from what the same collective took on each rank; or why not.

    No clocks are compared: the rank that comes last waits for nobody, so the shortest time that a
    collective took on any rank is its transfer, and what the others took beyond it is their wait.
    """
    if len(spans) < 2:
        return None, ""
    if len({len(one) for one in spans.values()}) != 1:
        return None, "ranks made different numbers of collectives: who waits for whom is unknown"
    if not next(iter(spans.values())):
        return None, ""
    took = {rank: [end - begin for begin, end in one] for rank, one in spans.items()}
    transfer = [min(column) for column in zip(*took.values(), strict=True)]
    scale = 1e-6 / n_steps
    waiting = {rank: (sum(one) - sum(transfer)) * scale for rank, one in took.items()}
    rows = tuple(
        RankWait(rank, steps_s.get(rank), sum(took[rank]) * scale, waiting[rank])
        for rank in sorted(took)
    )
    straggler = min(waiting, key=lambda rank: waiting[rank])
    known = [value for value in steps_s.values() if value]
    difference = max(waiting.values()) - waiting[straggler]
    is_level = not known or difference < LEVEL * fmean(known)
    return (
        Skew(
            transfer_s=sum(transfer) * scale,
            skew_s=fmean(waiting.values()),
            straggler=None if is_level else straggler,
            ranks=rows,
        ),
        "",
    )
