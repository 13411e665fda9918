"""Sets of time as sorted intervals that do not touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Intervals = list[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """All the time that lies in any of the intervals."""
    merged: Intervals = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > begin:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[tuple[float, float]]) -> float:
    """How much time that is."""
    return sum(end - begin for begin, end in intervals)


def overlap(a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]]) -> Intervals:
    """The time that lies in both of two unions."""
    found: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            found.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def gaps(busy: Sequence[tuple[float, float]], begin: float, end: float) -> Intervals:
    """The time between `begin` and `end` that a union leaves out."""
    found: Intervals = []
    at = begin
    for one_begin, one_end in busy:
        if one_begin > at:
            found.append((at, min(one_begin, end)))
        at = max(at, one_end)
    if at < end:
        found.append((at, end))
    return [(a, b) for a, b in found if b > a]
