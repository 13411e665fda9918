"""`hotlap train` as a user runs it: it learns, and it is a Run."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
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
    words_of,
)

from hotlap.data.idx import find_idx_folder
from hotlap.data.tokens import prepare_text
from hotlap.errors import UsageError
from hotlap.trainer.checkpoint import damage

LATE_WRITER = str(HERE / "late_writer.py")
PACKAGE = "dataset-fashion-mnist"
LEARNING_S = 900
"""Five minutes on a core of its own; other tests may have it."""


def hotlap_train(
    folder: Path, *words: str, timeout: int = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hotlap", "train", *words],
        cwd=folder,
        # The other core may have tests of its own: two threads would wait for each other.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def validation_figures(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    return [one for line in lines if (one := json.loads(line))["part"] == "validation"]


def test_a_training_is_a_run_like_any_other(tmp_path: Path) -> None:
    make_tokens(tmp_path / "tokens")
    done = hotlap_train(tmp_path, TINY, "validate_every=1")
    assert done.returncode == 0, done.stderr
    assert "validation loss" in done.stderr
    (file,) = (tmp_path / ".hotlap").glob("*/run.json")
    run = json.loads(file.read_text())
    assert run["status"] == "ok"
    assert len(run["loss"]) == 20
    assert run["samples_per_s"] > 0
    assert (tmp_path / "training" / "weights.safetensors").is_file()


@pytest.mark.timeout(LEARNING_S + 60)
def test_a_gpt_learns_a_real_text(tmp_path: Path) -> None:
    """Python's own reference: the frequency of its bytes alone would give a loss of 2.67."""
    prepare_text(Path(pydoc_data.topics.__file__), tmp_path / "tokens")
    changes = ("precision=fp32", "device=cpu", "width=64", "steps=250", "validate_every=1000")
    done = hotlap_train(tmp_path, "gpt-small-text", *changes, timeout=LEARNING_S)
    assert done.returncode == 0, done.stderr
    assert validation_figures(tmp_path)[-1]["loss"] < 1.8


def fashion_mnist() -> None:
    """Have the data set where it belongs."""
    try:
        find_idx_folder("")
    except UsageError:
        for words in (["update"], ["install", "-y", PACKAGE]):
            subprocess.run(["apt-get", "-q", *words], check=True, timeout=300)
        find_idx_folder("")


@pytest.mark.timeout(LEARNING_S + 60)
def test_a_resnet_learns_fashion_mnist_on_a_cpu(tmp_path: Path) -> None:
    fashion_mnist()
    done = hotlap_train(tmp_path, "resnet18-fashion-cpu", "log_steps=100", timeout=LEARNING_S)
    assert done.returncode == 0, done.stderr
    assert validation_figures(tmp_path)[-1]["top1"] >= 0.88


def test_a_bad_setting_stops_all_ranks_with_one_sentence(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    done = train(tmp_path, tokens, "tp=3", n_ranks=2)
    assert done.returncode != 0
    assert "mesh: pp=1 dp=1 shard=1 tp=3 is for 3 ranks, and there are 2" in done.stderr
    assert not (tmp_path / "training").exists()


def test_losses_are_written_for_every_step_that_is_told(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    assert train(tmp_path, tokens, "log_steps=5", "tensorboard=true").returncode == 0
    assert list(losses(tmp_path)) == [5, 10, 15, 20]
    assert list((tmp_path / "training" / "tensorboard").glob("events*"))


def test_a_test_of_settings_begins_anew_and_leaves_nothing_to_go_on_from(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    assert train(tmp_path, tokens, "steps=8", "checkpoint_steps=4").returncode == 0
    kept = sorted((tmp_path / "training").glob("*/step-*"))
    weights = (tmp_path / "training" / "weights.safetensors").stat().st_mtime_ns
    done = train(tmp_path, tokens, "test_steps=3", "validate_every=1")
    assert done.returncode == 0, done.stderr
    assert "step 1/3" in done.stderr
    assert "validation loss" in done.stderr
    assert sorted((tmp_path / "training").glob("*/step-*")) == kept
    assert (tmp_path / "training" / "weights.safetensors").stat().st_mtime_ns == weights


def test_a_checkpoint_that_is_written_late_on_one_rank_holds_nobody_up(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    process = begin(
        tmp_path, tokens, "batch=4", "checkpoint_steps=4", n_ranks=2, program=(LATE_WRITER, "0.5")
    )
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors[-3000:]
    assert len(losses(tmp_path)) == 20
    newest = tmp_path / "training" / "checkpoints" / "step-00000020"
    assert not damage(newest)


@pytest.mark.parametrize("is_looked_for", [True, False])
def test_parameters_may_be_unused_in_some_steps_where_they_are_looked_for(
    tmp_path: Path, is_looked_for: bool
) -> None:
    (tmp_path / "now_and_then.py").write_text(NOW_AND_THEN)
    (tmp_path / "recipe.toml").write_text(OF_A_FACTORY)
    words = words_of("-m", "hotlap.trainer", "recipe.toml", n_ranks=2)
    done = subprocess.run(
        [*words, f"find_unused_parameters={str(is_looked_for).lower()}"],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": with_folder(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode == 0) == is_looked_for, done.stderr[-3000:]


def with_folder(folder: Path) -> str:
    """Where Python looks for modules, and this folder."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


NOW_AND_THEN = """
from torch import nn


class NowAndThen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 1000), nn.Linear(12, 1000)
        self.n_calls = 0

    def forward(self, images):
        flat = images.flatten(1)
        self.n_calls += 1
        return self.first(flat) if self.n_calls % 2 else self.first(flat) + self.second(flat)
"""

OF_A_FACTORY = """
[model]
factory = "now_and_then:NowAndThen"

[data]
image_size = 2
n_samples = 64

[loop]
batch = 4
steps = 6
validate_every = 0

[compute]
device = "cpu"
precision = "fp32"

[mesh]
timeout_s = 20.0
"""
