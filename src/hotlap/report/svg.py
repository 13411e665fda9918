"""Plots as inline SVG: rows of bars, and a curve with a band. Colours are the page's.

Every plot has a title and a description for those who do not see it. Labels have lines or columns
of their own, so that they do not meet, whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, log10

WIDTH = 760
LABELS = 150
"""Width of the column of names."""
VALUES = 150
"""Width of the column of numbers, right of the bars."""
ROW = 24
TEXT = 16
"""Height of a line of text."""
PLOT_HEIGHT = 260


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a bar from where to where, and what is written beside it."""

    name: str
    start: float
    end: float
    text: str
    low: float | None = None
    """Of an interval around the end."""
    high: float | None = None
    is_total: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across all rows at one value."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """Of a curve: a place on the axis, a value and its interval."""

    name: str
    value: float
    low: float
    high: float
    is_inside: bool
    """In the range that is marked."""
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """What a plot says of itself."""

    key: str
    """Unique on a page."""
    title: str
    description: str
    axis: str


def bars(words: Words, rows: Sequence[Bar], marks: Sequence[Mark] = ()) -> str:
    """A row for each, the scale from zero to the largest of all."""
    left, right = LABELS, WIDTH - VALUES
    most = max((*(one.high or one.end for one in rows), *(one.at for one in marks), 1e-300))
    x = _scale(most, left, right)
    top = 8 + TEXT * len(marks)
    bottom = top + ROW * len(rows)
    parts = list(_ticks_below(words, most, x, top, bottom))
    for i, one in enumerate(rows):
        parts += _bar_row(one, x, top + i * ROW)
    # The rightmost has the highest line of text, so that no other's line runs through it.
    for i, mark in enumerate(sorted(marks, key=lambda one: -one.at)):
        y = 4 + TEXT * (i + 1)
        parts.append(_line("mark", x(mark.at), y - 4, x(mark.at), bottom))
        parts.append(_beside(x(mark.at), y, mark.text, (left + right) / 2))
    return _svg(words, bottom + 2 * TEXT + 8, parts)


def listed(words: Words, rows: Sequence[Bar]) -> str:
    """The same with names that need a line of their own above their bar."""
    right = WIDTH - VALUES
    most = max((*(one.high or one.end for one in rows), 1e-300))
    x = _scale(most, 0, right)
    parts: list[str] = []
    for i, one in enumerate(rows):
        y = 4 + i * (ROW + TEXT)
        parts.append(_text("name", 0, y + TEXT - 4, one.name, "start"))
        parts += _bar_row(one, x, y + TEXT, has_name=False)
    return _svg(words, 4 + len(rows) * (ROW + TEXT) + 4, parts)


def curve(words: Words, points: Sequence[Point], floor_at: Mark, range_text: str) -> str:
    """Points at equal distances, their interval as a band, a marked range, a least value."""
    left, right, top = 70, WIDTH - 30, 10 + 2 * TEXT
    bottom = top + PLOT_HEIGHT
    most = max(max(one.high for one in points), floor_at.at)
    step = (right - left - 40) / max(1, len(points) - 1)
    xs = [left + 20 + i * step for i in range(len(points))]
    upwards = _scale(most, 0, PLOT_HEIGHT)

    def y(value: float) -> float:
        return bottom - upwards(value)

    inside = [at for at, one in zip(xs, points, strict=True) if one.is_inside]
    parts = []
    if inside:
        start, width = inside[0] - 14, inside[-1] - inside[0] + 28
        parts.append(
            f'<rect class="range" x="{start:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{PLOT_HEIGHT}"/>'
        )
        parts.append(_beside(start, TEXT, range_text, (left + right) / 2))
    for tick in _ticks(most):
        parts.append(_line("grid", left, y(tick), right, y(tick)))
        parts.append(_text("tick", left - 6, y(tick) + 4, f"{tick:g}", "end"))
    parts.append(_band(xs, points, y))
    parts.append(_line("mark", left, y(floor_at.at), right, y(floor_at.at)))
    is_below = points[-1].value < floor_at.at
    parts.append(
        _text("tick", right, y(floor_at.at) + (-6 if is_below else TEXT), floor_at.text, "end")
    )
    centres = [(at, y(one.value)) for at, one in zip(xs, points, strict=True)]
    parts += [_line("curve", *before, *after) for before, after in pairwise(centres)]
    for (at, height), one in zip(centres, points, strict=True):
        kind = "dot chosen" if one.is_chosen else "dot"
        parts.append(f'<circle class="{kind}" cx="{at:.1f}" cy="{height:.1f}" r="4.5"/>')
        parts.append(_text("tick", at, bottom + TEXT, one.name, "middle"))
        if one.is_chosen:
            parts.append(_beside(at, 2 * TEXT, "this plan", (left + right) / 2))
            parts.append(_line("chosen", at, 2 * TEXT + 4, at, bottom))
    parts.append(_text("tick", (left + right) / 2, bottom + 2 * TEXT + 2, words.axis, "middle"))
    return _svg(words, bottom + 3 * TEXT, parts)


def _band(xs: Sequence[float], points: Sequence[Point], y: Callable[[float], float]) -> str:
    above = [f"{at:.1f},{y(one.high):.1f}" for at, one in zip(xs, points, strict=True)]
    below = [f"{at:.1f},{y(one.low):.1f}" for at, one in zip(xs, points, strict=True)]
    return f'<polygon class="band" points="{" ".join([*above, *reversed(below)])}"/>'


def _bar_row(
    one: Bar, x: Callable[[float], float], y: float, has_name: bool = True
) -> Sequence[str]:
    """A name, a bar, its interval and its number."""
    kind = "bar total" if one.is_total else "bar"
    start, width = x(one.start), max(0.0, x(one.end) - x(one.start))
    parts = [
        f'<rect class="{kind}" x="{start:.1f}" y="{y + 4}" width="{width:.1f}" '
        f'height="{ROW - 8}"/>',
        _text("value", WIDTH - VALUES + 10, y + ROW - 8, one.text, "start"),
    ]
    if has_name:
        parts.append(_text("name", LABELS - 10, y + ROW - 8, one.name, "end"))
    if one.low is not None and one.high is not None:
        middle = y + ROW / 2
        parts.append(_line("interval", x(one.low), middle, x(one.high), middle))
        parts += [
            _line("interval", x(end), middle - 4, x(end), middle + 4) for end in (one.low, one.high)
        ]
    return parts


def _ticks_below(
    words: Words, most: float, x: Callable[[float], float], top: float, bottom: float
) -> Sequence[str]:
    parts = []
    for tick in _ticks(most):
        parts.append(_line("grid", x(tick), top, x(tick), bottom))
        parts.append(_text("tick", x(tick), bottom + TEXT, f"{tick:g}", "middle"))
    middle = (LABELS + WIDTH - VALUES) / 2
    return [*parts, _text("tick", middle, bottom + 2 * TEXT + 2, words.axis, "middle")]


def _ticks(most: float) -> list[float]:
    """Four to eight round numbers from zero on."""
    raw = most / 5
    power = 10.0 ** floor(log10(raw))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= raw)
    return [float(f"{i * step:.12g}") for i in range(floor(most / step) + 1)]


def _scale(most: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * value / most


def _beside(x: float, y: float, text: str, middle: float) -> str:
    """Text at a line, on the side where there is room."""
    return (
        _text("tick", x - 4, y, text, "end")
        if x > middle
        else _text("tick", x + 4, y, text, "start")
    )


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _svg(words: Words, height: float, parts: Sequence[str]) -> str:
    key = escape(words.key, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-labelledby="{key}-title {key}-desc" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{key}-title">{escape(words.title)}</title>'
        f'<desc id="{key}-desc">{escape(words.description)}</desc>{"".join(parts)}</svg>'
    )
