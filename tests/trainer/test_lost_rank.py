"""A rank that is lost ends the job within a minute, by default, and the training can go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from training import (
    HERE,
    MODULE,
    TIMEOUT_S,
    TINY,
    begin,
    environment,
    losses,
    make_tokens,
    train,
    words_of,
)

from hotlap.distributed.judge import BEAT_S

MINUTE_S = 60
SLOW_RANK, SLOW_STEP = str(HERE / "slow_rank.py"), str(HERE / "slow_step.py")
ENDLESS = ("steps=100000", "batch=4", "checkpoint_steps=5")
LOST = {
    "killed": (signal.SIGKILL, "SIGKILL"),
    "raises": (signal.SIGINT, "KeyboardInterrupt"),
    "stands still": (signal.SIGSTOP, "rank 1 has given no sign for 40 s"),
}


def wait_for_checkpoint(folder: Path, step: int) -> None:
    """Of this step or a later one, whole."""
    deadline = time.monotonic() + TIMEOUT_S
    least = f"step-{step:08d}"
    while not any(least <= name for name in checkpoints(folder)):
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.05)


def wait_for_first_steps(folder: Path) -> None:
    """There is a checkpoint, and all ranks have said that they are on their way."""
    wait_for_checkpoint(folder, 5)
    time.sleep(3 * BEAT_S)


def checkpoints(folder: Path) -> list[str]:
    found = (folder / "training" / "checkpoints").glob("step-*")
    return [path.name for path in found if not path.suffix]


def end_of(process: subprocess.Popen[str]) -> str:
    """What it said until it ended, within a minute from now."""
    try:
        _, errors = process.communicate(timeout=MINUTE_S)
    except subprocess.TimeoutExpired:
        for one in (process.pid, *ranks_of(process.pid)):
            os.kill(one, signal.SIGKILL)
        raise
    assert process.returncode != 0
    return errors


def assert_goes_on(folder: Path, tokens: str) -> None:
    """One process takes up from the checkpoint that was left."""
    again = train(folder, tokens, "batch=8", "steps=1")
    assert again.returncode == 0, again.stderr
    assert "going on from" in again.stderr


def lose(how: str, folder: Path, tokens: str) -> None:
    """Rank 1 is killed, raises or stands still; by default settings."""
    process = begin(folder, tokens, *ENDLESS, n_ranks=2)
    wait_for_first_steps(folder)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    number, reason = LOST[how]
    os.kill(ranks[1], number)
    assert reason in end_of(process)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert_goes_on(folder, tokens)


def lose_the_first_rank(folder: Path, tokens: str) -> None:
    """It is the one that looks after the others."""
    process = begin(folder, tokens, *ENDLESS, "stall_s=5", n_ranks=2)
    wait_for_first_steps(folder)
    os.kill(ranks_of(process.pid)[0], signal.SIGSTOP)
    assert "rank 0 has given no sign for 5 s" in end_of(process)
    assert_goes_on(folder, tokens)


def lose_the_rank_where_all_meet(folder: Path, tokens: str) -> None:
    """As under srun: no launcher keeps the store, rank 0 does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **meeting}
    words = words_of(*MODULE, TINY, tokens, *ENDLESS, "stall_s=5")
    ranks = [
        subprocess.Popen(
            words,
            cwd=folder,
            env={**environment(), **world, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        wait_for_first_steps(folder)
        ranks[0].send_signal(signal.SIGSTOP)
        _, errors = ranks[1].communicate(timeout=MINUTE_S)
    finally:
        for one in ranks:
            one.kill()
    assert f"rank 1 had no answer for 5 s from 127.0.0.1 port {port}" in errors
    ranks[0].communicate(timeout=MINUTE_S)
    assert_goes_on(folder, tokens)


def wait_for_data_for_ever(rank: int, folder: Path, tokens: str) -> None:
    """The data of one rank never come; by default settings."""
    program = (SLOW_RANK, str(rank), "30", "100000")
    process = begin(folder, tokens, *ENDLESS, "asynchronous=false", n_ranks=2, program=program)
    wait_for_checkpoint(folder, 30)
    errors = end_of(process)
    assert f"rank {rank} has stood still for 40 s (loading data, step 31, at " in errors
    assert_goes_on(folder, tokens)


def stand_still_in_a_step(setting: str, folder: Path, tokens: str) -> None:
    """The others wait for it in the same step: behind their forward, or in the middle of it."""
    program = (SLOW_STEP, "30")
    changes = (*ENDLESS, "asynchronous=false", setting)
    process = begin(folder, tokens, *changes, n_ranks=2, program=program)
    wait_for_checkpoint(folder, 30)
    errors = end_of(process)
    assert "rank 1 has stood still for 40 s (in the step, step 31, at slow_step.py:" in errors
    assert_goes_on(folder, tokens)


SCENES: dict[str, Callable[[Path, str], None]] = {
    "stands still": partial(lose, "stands still"),
    "no data on rank 0": partial(wait_for_data_for_ever, 0),
    "no data on rank 1": partial(wait_for_data_for_ever, 1),
    "in a step": partial(stand_still_in_a_step, "dp=2"),
    "in a sharded step": partial(stand_still_in_a_step, "shard=2"),
    "killed": partial(lose, "killed"),
    "raises": partial(lose, "raises"),
    "first rank": lose_the_first_rank,
    "rank where all meet": lose_the_rank_where_all_meet,
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """All of them, some at a time: most of each is waiting."""
    with ThreadPoolExecutor(3) as pool:
        started = {}
        for name, scene in SCENES.items():
            folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
            tokens = f"data.path={make_tokens(folder / 'tokens')}"
            started[name] = pool.submit(scene, folder, tokens)
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", SCENES)
def test_a_lost_rank_ends_the_job_within_a_minute_and_leaves_a_checkpoint(
    scenes: dict[str, Future[None]], scene: str
) -> None:
    scenes[scene].result()


@pytest.mark.timeout(400)
def test_a_slow_first_step_is_waited_for(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    process = begin(
        tmp_path, tokens, "batch=4", "stall_s=2", n_ranks=2, program=(SLOW_RANK, "1", "0", "8")
    )
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors[-3000:]
    assert len(losses(tmp_path)) == 20


def ranks_of(agent: int) -> list[int]:
    """The processes that torchrun has started, in the order of their ranks."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    found = {}
    for child in map(int, children):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        for one in variables:
            if one.startswith(b"RANK="):
                found[int(one.removeprefix(b"RANK="))] = child
    return [found[rank] for rank in sorted(found)]
