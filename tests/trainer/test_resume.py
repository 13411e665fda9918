"""Nothing of a training is lost, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training import (
    HERE,
    TIMEOUT_S,
    TINY,
    begin,
    environment,
    losses,
    make_tokens,
    train,
    wait_until_it_trains,
    weights,
)

EVERY_TWO = ("checkpoint_steps=2", "dropout=0.1")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"data.path={make_tokens(tmp_path_factory.mktemp('tokens'))}"


@pytest.fixture(scope="module")
def uninterrupted(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty steps without a break, with dropout and averaged weights."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = train(folder, tokens, *EVERY_TWO, "ema_decay=0.9")
    assert done.returncode == 0, done.stderr
    assert len(losses(folder)) == 20
    return folder


def test_a_training_that_was_cut_goes_on_to_the_same_bits(
    tmp_path: Path, tokens: str, uninterrupted: Path
) -> None:
    """The schedule is that of the whole training: it is asked to leave, not told to be shorter."""
    begun = start_and_signal(tmp_path, signal.SIGTERM, tokens, *EVERY_TWO, "ema_decay=0.9")
    assert begun.returncode == 75, begun.stderr
    assert "asked to leave" in begun.stderr
    done = train(tmp_path, tokens, *EVERY_TWO, "ema_decay=0.9")
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stderr
    assert losses(tmp_path) == losses(uninterrupted)
    assert weights(tmp_path) == weights(uninterrupted)


def start_and_signal(
    folder: Path, number: signal.Signals, *changes: str, n_ranks: int = 1
) -> subprocess.CompletedProcess[str]:
    """Start it and send a signal once it trains."""
    process = begin(folder, *changes, n_ranks=n_ranks)
    wait_until_it_trains(folder)
    process.send_signal(number)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_the_other_signal_does_the_same(tmp_path: Path, tokens: str) -> None:
    assert start_and_signal(tmp_path, signal.SIGUSR1, tokens, "steps=2000").returncode == 75


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, tokens: str, uninterrupted: Path
) -> None:
    assert (
        train(tmp_path, tokens, *EVERY_TWO, "ema_decay=0.9", "keep_checkpoints=9").returncode == 0
    )
    newest = max((tmp_path / "training" / "checkpoints").glob("step-*"))
    file = next(newest.glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    done = train(tmp_path, tokens, *EVERY_TWO, "ema_decay=0.9", "keep_checkpoints=9")
    assert f"the checkpoint {newest.name} is damaged" in done.stderr
    assert "step 18, epoch" in done.stderr
    assert losses(tmp_path) == losses(uninterrupted)
    assert weights(tmp_path) == weights(uninterrupted)


@pytest.mark.timeout(400)
def test_a_checkpoint_of_two_ranks_is_read_by_four_and_by_one(tmp_path: Path, tokens: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    assert train(whole, tokens, "batch=8", "schedule.name=constant").returncode == 0
    stages = [
        (2, ("batch=4", "shard=2", "steps=6")),
        (4, ("batch=2", "dp=2", "shard=2", "steps=12")),
        (1, ("batch=8", "steps=20")),
    ]
    for n_ranks, changes in stages:
        done = train(parts, tokens, *changes, "schedule.name=constant", n_ranks=n_ranks)
        assert done.returncode == 0, done.stderr[-3000:]
    found, expected = losses(parts), losses(whole)
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - loss) / loss for step, loss in expected.items()) <= 1e-5


@pytest.mark.timeout(600)
def test_killed_at_a_hundred_points_it_ends_with_the_same_bits(
    tmp_path: Path, tokens: str, uninterrupted: Path
) -> None:
    script = str(HERE / "kill_many_times.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, "100", TINY, tokens, *EVERY_TWO, "ema_decay=0.9"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    folders = sorted(tmp_path.glob("training-*"))
    assert folders
    for folder in folders:
        assert losses(folder) == losses(uninterrupted)
        assert weights(folder) == weights(uninterrupted)


def test_a_loss_that_is_no_number_ends_it_with_step_batch_and_checkpoint(
    tmp_path: Path, tokens: str
) -> None:
    done = train(tmp_path, tokens, "lr=1e30", "warmup_steps=0", "clip_norm=0", "checkpoint_steps=1")
    assert done.returncode == 2
    assert "is no number" in done.stderr
    assert "epoch 1, batch" in done.stderr
    assert "the last good checkpoint is" in done.stderr or "there is no checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
