"""A training is one Run, whatever has started its ranks and however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training import (
    TIMEOUT_S,
    TINY,
    environment,
    losses,
    make_tokens,
    ranks_of,
    runs,
    wait_until_it_trains,
    words_of,
)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"data.path={make_tokens(tmp_path_factory.mktemp('tokens'))}"


def begin_on_two_ranks(
    folder: Path, *changes: str, above: tuple[str, ...] = (), **variables: str
) -> subprocess.Popen[str]:
    """`torchrun -m hotlap train`, with another command above it or not."""
    words = words_of("-m", "hotlap", "train", TINY, *changes, n_ranks=2)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*above, *words],
        cwd=folder,
        env=environment() | variables,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )


def on_two_ranks(folder: Path, *changes: str, **more: Any) -> subprocess.CompletedProcess[str]:
    process = begin_on_two_ranks(folder, *changes, **more)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_two_ranks_are_one_run(tmp_path: Path, tokens: str) -> None:
    done = on_two_ranks(tmp_path, tokens)
    assert done.returncode == 0, done.stderr
    assert "recorded as" in done.stderr
    (run,) = runs(tmp_path)
    assert (run["status"], run["exit_code"], run["world_size"]) == ("ok", 0, 2)
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    assert run["loss"] == pytest.approx(list(losses(tmp_path).values()), rel=1e-6)
    assert run["notes"] == ["FLOPs are unknown: the process was ended before the count"]
    (folder,) = (tmp_path / ".hotlap").glob("2*")
    assert sorted(path.name[:10] for path in folder.iterdir()) == [
        *("rank-00000", "rank-00001", "run.json")
    ]


def test_a_training_that_is_timed_from_outside_is_not_recorded_twice(
    tmp_path: Path, tokens: str
) -> None:
    above = (sys.executable, "-m", "hotlap", "time", "--quiet")
    done = on_two_ranks(tmp_path, tokens, above=above)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert (run["status"], run["world_size"], len(run["loss"])) == ("ok", 2, 20)


def test_two_trainings_at_once_in_one_folder_are_two_runs(tmp_path: Path, tokens: str) -> None:
    begun = [
        begin_on_two_ranks(tmp_path, tokens, f"steps={n}", f"output.folder=of-{n}")
        for n in (11, 17)
    ]
    for process in begun:
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors
    assert sorted(len(run["loss"]) for run in runs(tmp_path)) == [11, 17]
    assert all(len(run["ranks"]) == 2 for run in runs(tmp_path))


def test_one_that_was_asked_to_leave_says_so_with_its_exit_code(
    tmp_path: Path, tokens: str
) -> None:
    process = begin_on_two_ranks(tmp_path, tokens, "steps=100000")
    wait_until_it_trains(tmp_path)
    process.terminate()
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert "asked to leave" in errors
    (run,) = runs(tmp_path)
    assert (run["status"], run["exit_code"], len(run["ranks"])) == ("killed", 75, 2)


def test_one_that_was_asked_to_leave_alone_says_the_same(tmp_path: Path, tokens: str) -> None:
    words = words_of("-m", "hotlap", "train", TINY, tokens, "steps=100000")
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=pipe, text=True)
    wait_until_it_trains(tmp_path)
    process.terminate()
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 75, errors
    (run,) = runs(tmp_path)
    assert (run["status"], run["exit_code"], len(run["ranks"])) == ("killed", 75, 1)


def test_one_that_was_killed_is_merged_when_runs_are_read(tmp_path: Path, tokens: str) -> None:
    process = begin_on_two_ranks(tmp_path, tokens, "steps=100000")
    wait_until_it_trains(tmp_path)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    for pid in (process.pid, *ranks):  # the agent first: it would end the others in order
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    assert runs(tmp_path) == []
    listing = subprocess.run(
        [sys.executable, "-m", "hotlap", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert " killed " in listing.stdout
    (run,) = runs(tmp_path)
    assert (run["status"], run["exit_code"], len(run["ranks"])) == ("killed", None, 2)
    assert run["loss"][0] == pytest.approx(losses(tmp_path)[1], rel=1e-6)


def test_one_that_cannot_start_has_failed_with_exit_code_2(tmp_path: Path, tokens: str) -> None:
    assert on_two_ranks(tmp_path, tokens, "tp=3").returncode != 0
    (run,) = runs(tmp_path)
    assert (run["status"], run["exit_code"], run["loss"]) == ("failed", 2, [])


def test_where_runs_cannot_be_kept_the_training_goes_on(tmp_path: Path, tokens: str) -> None:
    (tmp_path / "a file").touch()
    done = on_two_ranks(tmp_path, tokens, HOTLAP_RUNS_DIR=str(tmp_path / "a file"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this training is not recorded: the folder for Runs") == 1
    assert len(losses(tmp_path)) == 20
