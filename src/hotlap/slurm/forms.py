"""How Slurm writes times, limits and records, to numbers and back."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(?:\.\d+)?")


def parse_hours(text: str) -> float | None:
    """Hours of `4-04:00:00`, `20:00:00`, `MM:SS` or minutes alone; None where there is no limit."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, first, second, third = match.groups()
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours = int(days) * 24 + int(first) + int(second or 0) / 60 + int(third or 0) / 3600
    elif third is not None:
        hours = int(first) + int(second) / 60 + int(third) / 3600
    elif second is not None:
        hours = int(first) / 60 + int(second) / 3600
    else:
        hours = int(first) / 60
    return hours


def format_time(hours: float) -> str:
    """`HH:MM:SS`, a broken second up."""
    seconds = -(-round(hours * 3_600_000) // 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def fields(line: str) -> dict[str, str]:
    """`Key=value` pairs of one line of `scontrol --oneliner`; a value may hold blanks."""
    parts = re.split(r"(?:^|\s)([A-Z][A-Za-z0-9_:/]*)=", line)
    return {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}


def count_of(tres: str, name: str) -> int | None:
    """The number of one resource in `cpu=4,gres/gpu=16`."""
    for part in tres.split(","):
        key, _, value = part.partition("=")
        if key == name and value.isdigit():
            return int(value)
    return None


def whole(text: str) -> int | None:
    """A number, or None for UNLIMITED, N/A and the like."""
    return int(text) if text.strip().isdigit() else None
