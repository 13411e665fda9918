"""The tape: an append-only file of marks, written through memory maps.

What is in the map survives the process, however it dies. Space is allocated a chunk ahead of the
writing: on a full disk that is an OSError here, where a sparse map would be a SIGBUS that kills
the training. A zero host clock ends the tape.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from hotlap.chronometer.marks import BYTES, QUIET, WORDS, Mark

CHUNK_BYTES = 1 << 20
CHUNK_WORDS = CHUNK_BYTES // 8
MAX_BYTES = 1 << 28
"""Some million steps. A tape that has reached it stops, and says so."""


class TapeFull(OSError):
    """The tape has reached its greatest length."""


class Tape:
    """Writes marks."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._chunks: list[memoryview] = []
        self._integers: list[memoryview[int]] = []
        self._floats: list[memoryview[float]] = []
        """The same memory, as numbers: a view of it made for each would cost more than it does."""
        self.n_words = 0
        self._add_chunk()

    def _add_chunk(self) -> None:
        start = len(self._chunks) * CHUNK_BYTES
        if start >= MAX_BYTES:
            raise TapeFull(f"the tape is full at {MAX_BYTES >> 20} MiB")
        os.posix_fallocate(self._file, start, CHUNK_BYTES)
        chunk = memoryview(mmap.mmap(self._file, CHUNK_BYTES, offset=start))
        self._chunks.append(chunk)
        self._integers.append(chunk.cast("q"))
        self._floats.append(chunk.cast("d"))

    def write(self, words: list[int]) -> None:
        """Append marks."""
        done = 0
        while done < len(words):
            chunk, place = divmod(self.n_words, CHUNK_WORDS)
            if chunk == len(self._chunks):
                self._add_chunk()
            n = min(len(words) - done, CHUNK_WORDS - place)
            struct.pack_into(f"={n}q", self._chunks[chunk], 8 * place, *words[done : done + n])
            self.n_words += n
            done += n

    def amend(self, word: int, value: int | float) -> None:
        """Fill in a word that was not known when its mark was written; a float keeps its bits."""
        chunk, place = divmod(word, CHUNK_WORDS)
        if isinstance(value, float):
            self._floats[chunk][place] = value
        else:
            self._integers[chunk][place] = value

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
                mark = Mark(host_ns, code & 0xFF, code >> 8 & 0xFF, code >> 16, value, device_ns)
                if mark.flags & QUIET:
                    yield from mark.both_ends()
                else:
                    yield mark
