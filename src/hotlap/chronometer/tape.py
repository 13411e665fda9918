"""The tape: an append-only file of marks, written through memory maps.

What is in the map survives the process, however it dies. Space is allocated a chunk ahead of the
writing: on a full disk that is an OSError here, where a sparse map would be a SIGBUS that kills
the training. A zero host clock ends the tape, so it is written last.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.marks import BYTES, WORDS, Mark

CHUNK_BYTES = 1 << 20
MAX_BYTES = 1 << 30
"""Some three million steps. A tape that has reached it stops, and says so."""


class TapeFull(OSError):
    """The tape has reached its greatest length."""


class Tape:
    """Writes marks."""

    __slots__ = ("_file", "_length", "_limit", "cursor", "doubles", "words")

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._length = 0
        self._next_chunk()

    def _next_chunk(self) -> None:
        if self._length >= MAX_BYTES:
            raise TapeFull(f"the tape is full at {MAX_BYTES >> 20} MiB")
        os.posix_fallocate(self._file, self._length, CHUNK_BYTES)
        chunk = memoryview(mmap.mmap(self._file, CHUNK_BYTES, offset=self._length))
        self.words = chunk.cast("q")
        self.doubles = chunk.cast("d")
        self._length += CHUNK_BYTES
        self._limit = CHUNK_BYTES // 8
        self.cursor = 0

    def mark(self, code: int, value: int = 0) -> int:
        """Write a mark; returns its place in `words`."""
        place = self.cursor
        if place == self._limit:
            self._next_chunk()
            place = 0
        words = self.words
        words[place + 1] = code
        words[place + 2] = value
        words[place] = now_ns()
        self.cursor = place + WORDS
        return place

    def close(self) -> None:
        """Let go of the file; the maps go with the last reference to them."""
        os.close(self._file)


def read_tape(path: Path) -> Iterator[Mark]:
    """The marks of a tape, also of one whose writer was killed."""
    unpack = struct.Struct(f"={WORDS}q").iter_unpack
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            for host_ns, code, value, device_ns in unpack(chunk[: len(chunk) // BYTES * BYTES]):
                if host_ns == 0:
                    return
                yield Mark(host_ns, code & 0xFF, code >> 8 & 0xFF, code >> 16, value, device_ns)
