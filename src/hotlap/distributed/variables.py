"""Launchers' environment variables, read strictly: what is wrong is a sentence that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from hotlap.errors import UsageError

T = TypeVar("T")


def read(environ: Mapping[str, str], name: str, parse: Callable[[str], T], expected: str) -> T:
    """A variable that must be there and be readable; `parse` raises ValueError where it is not."""
    if name not in environ:
        raise UsageError(f"{name} is not set, but other variables of the same launcher are")
    try:
        return parse(environ[name])
    except ValueError:
        raise UsageError(f"{name} is '{environ[name]}'; {expected} is expected") from None


def number(environ: Mapping[str, str], name: str) -> int:
    """A variable that must be a whole number, zero or more."""
    return read(environ, name, _whole, "a whole number")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def require(environ: Mapping[str, str], given: str, *others: str) -> None:
    """Refuse variables that are set by half."""
    for name in others:
        if name not in environ:
            raise UsageError(f"{given} is set, but {name} is not: a launcher sets both")


def check_below(name: str, value: int, bound: int, counted: str) -> None:
    """Refuse a number that counts from zero and is not below how many there are."""
    if value >= bound:
        raise UsageError(
            f"{name} is {value}, but there are {bound} {counted}: it must be below {bound}"
        )
