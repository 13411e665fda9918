"""What the ranks of a Run left in its folder, and what their end says of the Run."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from hotlap.chronometer.session import CUT_SUFFIX
from hotlap.chronometer.steps import read_rank, replace_by_rank_file
from hotlap.errors import RecordError
from hotlap.records.rank import RankRecord
from hotlap.records.run import Status

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT)
ASKED_TO_LEAVE = 75
"""EX_TEMPFAIL: a training that was told by a signal to leave, and is to be started again."""


def status_of(code: int, records: Sequence[RankRecord], oom_kills_before: int) -> Status:
    """In a word, how a command ended with this exit code."""
    if any(record.cut for record in records):
        return "cut"
    if code == 0:
        return "ok"
    killed_by_kernel = kernel_oom_kills() > oom_kills_before
    if any(record.out_of_memory for record in records) or killed_by_kernel:
        return "oom"
    if code == ASKED_TO_LEAVE or -code in _ENDING_SIGNALS or code - 128 in _ENDING_SIGNALS:
        return "killed"
    return "failed"


def collect_ranks(folder: Path) -> tuple[list[RankRecord], list[str]]:
    """All that the ranks of a Run left; of processes that were killed, what is on their tapes."""
    notes: list[str] = []
    records: list[RankRecord] = []
    for path in sorted(folder.glob("rank-*.json")):
        try:
            records.append(RankRecord.read(path))
        except RecordError as error:
            notes.append(str(error))
    for facts in sorted(folder.glob("*.facts")):
        try:
            records.append(_fold(facts, notes))
        except Exception as error:
            notes.append(f"what {facts.stem} measured cannot be read: {error}")
    for leftover in folder.glob(f"*{CUT_SUFFIX}"):
        leftover.unlink(missing_ok=True)
    return records, notes


def _fold(facts: Path, notes: list[str]) -> RankRecord:
    alive = is_alive(facts.stem)
    if alive:
        notes.append(f"process {facts.stem} outlives the command: its figures are of this moment")
    record = read_rank(facts)
    try:
        if not alive:
            replace_by_rank_file(facts, record)
    except OSError as error:
        # A full disk: the figures reach the Run all the same, the steps one by one do not.
        notes.append(f"the rank file of {facts.stem} was not written: {error.strerror}")
    return record


def is_alive(stem: str) -> bool:
    """Whether a measured process of this host, named by host and process id, still runs."""
    host, _, pid = stem.rpartition("-")
    if host != socket.gethostname():
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def kernel_oom_kills() -> int:
    """How many processes the kernel has ended for want of memory since it started."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
