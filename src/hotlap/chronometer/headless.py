"""A Run that no launcher of hotlap's stands above: its ranks record themselves.

begin    rank 0 makes the folder, and leaves word in it of what runs
finish   each rank has written its file; rank 0 waits for those of the others and merges them
settle   of a training that was killed before that, the files are merged when Runs are read
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.collect import ASKED_TO_LEAVE, collect_ranks, is_alive, status_of
from hotlap.chronometer.merge import Ending, merge
from hotlap.errors import RecordError
from hotlap.machine.host import describe_host
from hotlap.records.begun import BEGUN, Begun
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run
from hotlap.records.store import RunStore

ENDED_GRACE_S, FAILED_GRACE_S = 10.0, 2.0
"""How long rank 0 waits for the files of the others, that end with it, or may stand still."""
POLL_S = 0.05
STILL_S = 600.0
"""A Run of other hosts, whose processes cannot be looked at, is over when no file changed so long.

The tape of a process that trains reaches the disk about twice a minute.
"""


def begin(runs_dir: Path, command: Sequence[str], world_size: int) -> Path:
    """Make the folder of a Run; called by rank 0, which tells the others."""
    folder = RunStore(runs_dir).new_folder().resolve()
    Begun(
        command=tuple(command),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=asdict(describe_host()),
        host=socket.gethostname(),
        pid=os.getpid(),
        world_size=world_size,
    ).write(folder)
    return folder


def finish(folder: Path, code: int, total_s: float, oom_kills_before: int) -> Run:
    """Merge what the ranks wrote; called by rank 0, whose own file is there."""
    begun = Begun.read(folder)
    has_ended = code in (0, ASKED_TO_LEAVE)
    _wait_for_others(folder, begun.world_size, ENDED_GRACE_S if has_ended else FAILED_GRACE_S)
    records, notes = collect_ranks(folder)
    status = status_of(code, records, oom_kills_before)
    return _write(folder, begun, records, Ending(status, code, total_s, tuple(notes)))


def _wait_for_others(folder: Path, world_size: int, grace_s: float) -> None:
    """Until each has written its file or is known to be dead; not where none was begun."""
    deadline = now_ns() + int(grace_s * 1e9)
    while n_written := len(list(folder.glob("rank-*.json"))):
        unfolded = [facts.stem for facts in folder.glob("*.facts")]
        n_dead = sum(_is_of_this_host(stem) and not is_alive(stem) for stem in unfolded)
        if n_written + n_dead >= world_size or now_ns() > deadline:
            return
        time.sleep(POLL_S)


def settle(folder: Path) -> None:
    """Make the Run of a training that was killed, if it is over; called by whoever reads Runs."""
    try:
        begun = Begun.read(folder)
        if not _is_over(folder, begun):
            return
        first = (folder / BEGUN).stat().st_mtime
        total_s = max(0.0, _last_change(folder) - first)
        note = "it was killed before it could write its Run: that was made when Runs were read"
        records, notes = collect_ranks(folder)
        _write(folder, begun, records, Ending("killed", None, total_s, (note, *notes)))
    except (OSError, RecordError):
        return  # another one's folder, or one that is just being removed: not this reader's trouble


def _is_over(folder: Path, begun: Begun) -> bool:
    stems = [f"{begun.host}-{begun.pid}", *(facts.stem for facts in folder.glob("*.facts"))]
    if any(is_alive(stem) for stem in stems):
        return False
    is_seen = all(map(_is_of_this_host, stems))
    return is_seen or time.time() - _last_change(folder) > STILL_S


def _last_change(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))


def _is_of_this_host(stem: str) -> bool:
    return stem.rpartition("-")[0] == socket.gethostname()


def _write(folder: Path, begun: Begun, records: Sequence[RankRecord], ending: Ending) -> Run:
    run = merge(
        records,
        run_id=folder.name,
        command=begun.command,
        started=begun.started,
        machine=begun.machine,
        ending=ending,
        warmup=None,
    )
    run.write(folder)
    (folder / BEGUN).unlink(missing_ok=True)
    return run
