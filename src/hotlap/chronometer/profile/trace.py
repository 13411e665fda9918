"""A chrome trace as torch's profiler writes it, read into the events that a profile is made of.

The file is read piece by piece: with Python stacks most of it is calls, which are passed over.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hotlap.errors import RecordError

STEP_MARK = "hotlap.step"
"""What window.py puts at the end of every step."""
HOST_CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
PIECE = 1 << 20


@dataclass(slots=True)
class Event:
    """One range of time; times are microseconds."""

    name: str
    category: str
    start: float
    duration: float
    thread: tuple[Any, Any]
    """Process and thread; of a kernel, device and stream."""
    args: dict[str, Any]

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class Trace:
    events: tuple[Event, ...]
    """By start; where two start together, the longer one first."""
    devices: tuple[dict[str, Any], ...]
    marks: tuple[float, ...]
    """The ends of the steps, the first one being the window's begin."""
    thread: tuple[Any, Any] | None
    """The thread that trains."""
    sites: dict[str, Any] = field(default_factory=dict)

    @property
    def n_steps(self) -> int:
        return max(len(self.marks) - 1, 0)


def read_trace(path: Path) -> Trace:
    """Read a trace, plain or compressed."""
    kept, marks, thread = [], [], None
    devices: list[dict[str, Any]] = []
    sites: dict[str, Any] = {}
    for key, value in read_items(path):
        if key == "deviceProperties":
            devices = value
        elif key == "hotlapSites":
            sites = value
        elif key == "traceEvents" and value.get("ph") == "X":
            event = _event(value)
            if event.name == STEP_MARK and event.category == "user_annotation":
                marks.append(event.start)
                thread = event.thread
            elif event.category in (*HOST_CATEGORIES, *DEVICE_CATEGORIES):
                kept.append(event)
    kept.sort(key=lambda event: (event.start, -event.duration))
    return Trace(tuple(kept), tuple(devices), tuple(sorted(marks)), thread, sites)


def _event(value: dict[str, Any]) -> Event:
    return Event(
        str(value.get("name", "")),
        str(value.get("cat", "")),
        float(value.get("ts", 0.0)),
        float(value.get("dur", 0.0)),
        (value.get("pid"), value.get("tid")),
        value.get("args") or {},
    )


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text file to read, compressed where its name ends in `.gz`."""
    with path.open("rb") as plain:
        binary = gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain
        with io.TextIOWrapper(binary, encoding="utf-8", errors="replace") as stream:
            yield stream


def read_items(path: Path) -> Iterator[tuple[str, Any]]:
    """The entries of the document; of `traceEvents` one after the other, each with that key."""
    try:
        with open_text(path) as stream:
            yield from _Reader(stream).items()
    except (OSError, EOFError, ValueError) as error:
        raise RecordError(f"the trace {path.name} cannot be read: {error}") from None


class _Reader:
    """A JSON object of which one list is too long to be held at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text, self._place = stream, "", 0
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def items(self) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            if key == "traceEvents":
                self._expect("[")
                while self._peek() != "]":
                    yield key, self._value()
                    self._skip_comma()
                self._expect("]")
            else:
                yield key, self._value()
            self._skip_comma()

    def _fill(self) -> bool:
        piece = self._stream.read(PIECE)
        self._text, self._place = self._text[self._place :] + piece, 0
        return bool(piece)

    def _peek(self) -> str:
        while True:
            while self._place < len(self._text) and self._text[self._place].isspace():
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._fill():
                raise ValueError("it ends too early")

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise ValueError(f"'{self._peek()}' was found where '{character}' is expected")
        self._place += 1

    def _skip_comma(self) -> None:
        if self._peek() == ",":
            self._place += 1

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._place)
            except ValueError:
                if not self._fill():
                    raise
                continue
            # A number at the end of the piece may go on in the next one.
            if end < len(self._text) or not self._fill():
                self._place = end
                return value
