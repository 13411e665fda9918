"""Small facts from the files under /proc and /sys. Each may be missing or hold nonsense: None."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def read(path: Path) -> str | None:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_word(path: Path) -> str | None:
    """What a file holds that holds one word or line."""
    return word(read(path))


def children(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing where it cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def field(text: str | None, key: str) -> str | None:
    """The value of the first line "key: value"."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return word(value)
    return None


def word(text: str | None) -> str | None:
    """A text without the white space around it, None where nothing is left."""
    return (text or "").strip() or None


def positive(text: str | None) -> int | None:
    """A whole number above zero."""
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if value > 0 else None


def least(values: Iterable[int | None]) -> int | None:
    """The least of those that are known."""
    return min((value for value in values if value is not None), default=None)


def cpu_list(text: str | None) -> frozenset[int]:
    """The CPUs that a list such as "0-3,8" names; none where it is no such list."""
    try:
        return frozenset(cpu for part in (text or "").split(",") for cpu in _cpu_range(part))
    except ValueError:
        return frozenset()


def count_cpu_list(text: str | None) -> int | None:
    """How many CPUs a list names."""
    return len(cpu_list(text)) or None


def _cpu_range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
