"""Standard input for trials: a file is read by each of them from where it stands now.

A pipe is not: what is read from it is gone for all others, it may never end, and it may hold the
rest of the shell script that `hotlap tune` is a line of. So trials have none then, and a user who
seems to miss it is told.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import stat
import termios
from collections.abc import Callable, Iterator, Sequence

STDIN = 0
MISSING = (
    "trials of `hotlap tune` have no standard input unless it is a file, as in "
    "`hotlap tune COMMAND < FILE`"
)


@contextlib.contextmanager
def trial_input() -> Iterator[int]:
    """A descriptor for the standard input of one trial."""
    descriptor = _opened_again() if _mode_is(stat.S_ISREG) else None
    if descriptor is None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def input_identity() -> str:
    """Which file trials read, and from where; empty where there is none."""
    if not _mode_is(stat.S_ISREG):
        return ""
    file = os.fstat(STDIN)
    return f"{file.st_dev} {file.st_ino} {file.st_mtime_ns} {os.lseek(STDIN, 0, os.SEEK_CUR)}"


def is_left_out() -> bool:
    """Whether a pipe brings something that trials do not get."""
    return _mode_is(stat.S_ISFIFO) and _n_waiting() > 0


def is_missed(last_lines: Sequence[str]) -> bool:
    """Whether a command that failed with these words may have wanted what trials do not get."""
    asked = bool(last_lines) and last_lines[-1].startswith("EOFError")
    return asked or is_left_out()


def _opened_again() -> int | None:
    """The file of our own standard input with a place of its own, which is ours at first."""
    try:
        descriptor = os.open(f"/proc/self/fd/{STDIN}", os.O_RDONLY)
    except OSError:  # of another user, who has opened it for us
        return None
    os.lseek(descriptor, os.lseek(STDIN, 0, os.SEEK_CUR), os.SEEK_SET)
    return descriptor


def _mode_is(kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.fstat(STDIN).st_mode)
    except OSError:  # closed
        return False


def _n_waiting() -> int:
    """Bytes that a pipe holds; they stay there."""
    waiting = array.array("i", [0])
    fcntl.ioctl(STDIN, termios.FIONREAD, waiting)
    return waiting[0]
