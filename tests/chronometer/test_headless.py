"""Runs that no launcher stands above: when they are over, and who says so."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hotlap.chronometer.headless import STILL_S, begin, finish, settle
from hotlap.records.begun import Begun
from hotlap.records.run import Run
from hotlap.records.store import RunStore

COMMAND = ("python", "-m", "hotlap.trainer", "tiny.toml")
NO_PROCESS = 2**22 + 1
"""More than Linux gives to any."""


def move(folder: Path, host: str, pid: int) -> None:
    """Say that rank 0 is another process than this one."""
    replace(Begun.read(folder), host=host, pid=pid).write(folder)


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "ok"), (1, "failed"), (2, "failed"), (75, "killed"), (-15, "killed"), (143, "killed")],
)
def test_the_exit_code_says_how_it_ended(tmp_path: Path, code: int, status: str) -> None:
    folder = begin(tmp_path, COMMAND, world_size=2)
    assert list(RunStore(tmp_path).unfinished()) == [folder]
    finish(folder, code, 1.5, oom_kills_before=10**9)
    run = Run.read(folder)
    assert (run.status, run.exit_code, run.command, run.total_s) == (status, code, COMMAND, 1.5)
    assert list(RunStore(tmp_path).unfinished()) == []


def test_one_that_still_runs_is_left_alone(tmp_path: Path) -> None:
    folder = begin(tmp_path, COMMAND, world_size=2)
    age(folder, 2 * STILL_S)
    settle(folder)
    assert list(RunStore(tmp_path).unfinished()) == [folder]


def test_one_whose_process_is_gone_was_killed(tmp_path: Path) -> None:
    folder = begin(tmp_path, COMMAND, world_size=2)
    move(folder, socket.gethostname(), NO_PROCESS)
    settle(folder)
    run = Run.read(folder)
    assert (run.status, run.exit_code) == ("killed", None)
    assert "killed before it could write its Run" in run.notes[0]


def test_one_of_another_host_is_over_when_nothing_changes_any_more(tmp_path: Path) -> None:
    folder = begin(tmp_path, COMMAND, world_size=2)
    move(folder, "another-host", os.getpid())
    settle(folder)
    assert list(RunStore(tmp_path).unfinished()) == [folder]
    age(folder, 2 * STILL_S)
    settle(folder)
    assert Run.read(folder).status == "killed"


def test_a_folder_that_cannot_be_read_is_no_readers_trouble(tmp_path: Path) -> None:
    folder = begin(tmp_path, COMMAND, world_size=2)
    (folder / "begun.json").write_text("{")
    settle(folder)
    assert list(RunStore(tmp_path).unfinished()) == [folder]
