"""What jobs print: all of it, as it comes, or the lines that say something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.slurm.find import Logs, state_of
from hotlap.slurm.states import has_ended

POLL_S = 1.0
ASK_S = 10.0
"""Slurm is asked so often whether a job is over; many users ask it."""


def streams(logs: Sequence[Logs], which: str) -> list[tuple[str, Path]]:
    """The files to show with their headings: 'out', 'err' or 'both'."""
    found: list[tuple[str, Path]] = []
    for one in logs:
        pairs = {"out": one.out, "err": one.err}
        for name, path in pairs.items():
            if which in ("both", name) and path not in [known for _, known in found]:
                found.append((f"{one.id} {one.name} {name}", path))
    return found


def read(path: Path) -> str:
    """A log so far; nothing where there is none yet. Bytes that are no text are shown as such."""
    try:
        return path.read_bytes().decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def search(files: Sequence[tuple[str, Path]], text: str) -> Iterator[tuple[str, int, str]]:
    """Heading, number and line of each line that holds a text."""
    for heading, path in files:
        for number, line in enumerate(read(path).splitlines(), 1):
            if text in line:
                yield heading, number, line


def follow(
    files: Sequence[tuple[str, Path]],
    numbers: Sequence[str],
    show: Callable[[str, bytes], None],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Show what comes until the jobs are over; what is there already comes first."""
    places = dict.fromkeys((path for _, path in files), 0)
    waited_s = ASK_S
    over = False
    while True:
        for heading, path in files:
            new = _after(path, places[path])
            if new:
                places[path] += len(new)
                show(heading, new)
        if over:
            return
        if waited_s >= ASK_S:
            # One more look after the end: the last lines may come later than the news.
            over = all(map(is_over, numbers))
            waited_s = 0.0
        wait(POLL_S)
        waited_s += POLL_S


def _after(path: Path, place: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(place)
            return stream.read()
    except OSError:
        return b""


def is_over(number: str) -> bool:
    """Whether no more will come of a job, or Slurm has forgotten it.

    While Slurm does not answer, as long as it starts again, a job goes on.
    """
    try:
        state = state_of(number)
    except UsageError:
        return False
    return state is None or has_ended(state)
