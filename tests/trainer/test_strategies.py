"""However a training is cut over ranks, it is the training of one process on the same batches."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training import HERE, TIMEOUT_S, TINY, environment, make_images, make_tokens, words_of

LOSS_BOUND = 1e-5
WEIGHT_BOUND = 1e-4
NEXT_TO_ZERO = 1e-6
"""Biases of norms that feed into nothing yet are zero, but for rounding."""
N_STEPS = 20

STRATEGIES = {
    "accumulate": (1, "batch=4", "accumulate=2"),
    "dp": (2, "batch=4"),
    "dp accumulate": (2, "batch=2", "accumulate=2"),
    "dp, optimizer state cut": (2, "batch=4", "shard_optimizer=true"),
    "dp, optimizer state cut, muon": (
        *(2, "batch=4", "shard_optimizer=true"),
        "optimizer.name=muon",
    ),
    "dp accumulate, optimizer state cut": (
        *(4, "batch=1", "accumulate=2", "dp=4"),
        "shard_optimizer=true",
    ),
    "shard": (2, "batch=4", "shard=2"),
    "shard accumulate": (2, "batch=2", "accumulate=2", "shard=2"),
    "tp": (2, "batch=8", "tp=2"),
    "tp, sequence parallel": (2, "batch=8", "tp=2", "sequence_parallel=true"),
    "dp shard": (4, "batch=2", "dp=2", "shard=2"),
    "dp tp": (4, "batch=4", "dp=2", "tp=2"),
    "shard tp": (4, "batch=4", "shard=2", "tp=2"),
    "dp tp, sequence parallel": (4, "batch=4", "dp=2", "tp=2", "sequence_parallel=true"),
    "shard tp, sequence parallel": (4, "batch=4", "shard=2", "tp=2", "sequence_parallel=true"),
    "pp": (2, "batch=8", "pp=2", "tied=false"),
    "pp, gpipe": (2, "batch=8", "pp=2", "tied=false", "mesh.schedule=gpipe"),
    "pp, interleaved": (2, "batch=8", "pp=2", "tied=false", "mesh.schedule=interleaved"),
    "pp dp": (4, "batch=4", "pp=2", "dp=2", "tied=false", "micro_batches=2"),
    "pp shard": (4, "batch=4", "pp=2", "shard=2", "tied=false", "micro_batches=2"),
    "pp, interleaved, muon": (
        *(2, "batch=8", "pp=2", "tied=false"),
        *("mesh.schedule=interleaved", "optimizer.name=muon"),
    ),
    "pp dp, interleaved": (
        *(4, "batch=4", "pp=2", "dp=2", "tied=false"),
        *("micro_batches=2", "mesh.schedule=interleaved"),
    ),
    "pp shard, interleaved": (
        *(4, "batch=4", "pp=2", "shard=2", "tied=false"),
        *("micro_batches=2", "mesh.schedule=interleaved"),
    ),
    "pp tp": (4, "batch=8", "pp=2", "tp=2", "tied=false"),
    "pp tp, sequence parallel": (
        *(4, "batch=8", "pp=2", "tp=2", "tied=false"),
        "sequence_parallel=true",
    ),
    "pp tp, sequence parallel, interleaved": (
        *(4, "batch=8", "pp=2", "tp=2", "tied=false"),
        *("sequence_parallel=true", "mesh.schedule=interleaved"),
    ),
    "checkpointed blocks": (1, "batch=8", "checkpoint_blocks=1"),
}
OF_THE_TRAINING = ("tied=", "optimizer.name=")

IMAGE_STRATEGIES = {
    "vit tp": ("tiny-vit", 2, "tp=2"),
    "vit tp, sequence parallel": ("tiny-vit", 2, "tp=2", "sequence_parallel=true"),
    "vit pp tp, sequence parallel": (
        *("tiny-vit", 4, "pp=2", "tp=2"),
        "sequence_parallel=true",
    ),
    "vit dp tp, sequence parallel": (
        *("tiny-vit", 4, "batch=8", "dp=2", "tp=2"),
        "sequence_parallel=true",
    ),
    "resnet dp, norms over all ranks": ("tiny-resnet", 2, "batch=8", "sync_batchnorm=true"),
    "resnet shard, norms over all ranks": (
        *("tiny-resnet", 2, "batch=8", "shard=2"),
        "sync_batchnorm=true",
    ),
}

Outcome = tuple[list[float], dict[str, torch.Tensor]]


def run(
    folder: Path, name: str, n_ranks: int, *changes: str, recipe: str = TINY, data: str = "tokens"
) -> Outcome:
    result, weights = folder / f"{name}.json", folder / f"{name}.safetensors"
    script = str(HERE / "train_and_tell.py")
    words = [script, str(result), str(weights), recipe, f"data.path={folder / data}", *changes]
    done = subprocess.run(
        words_of(*words, n_ranks=n_ranks),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(result.read_text()), load_file(weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    make_tokens(folder / "tokens")
    make_images(folder / "images")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[..., Outcome]:
    """One process, the whole batch, with what changes the training itself."""

    @cache
    def train(*changes: str) -> Outcome:
        losses, weights = run(
            folder, f"alone-{len(list(folder.iterdir()))}", 1, "batch=8", *changes
        )
        assert len(losses) == N_STEPS
        assert losses[-1] < losses[0] - 0.5
        return losses, weights

    return train


@pytest.fixture(scope="module")
def alone_on_images(folder: Path) -> Callable[[str], Outcome]:
    """One process, the whole batch."""

    @cache
    def train(recipe: str) -> Outcome:
        path = str(HERE / f"{recipe}.toml")
        losses, weights = run(folder, f"alone-{recipe}", 1, recipe=path, data="images")
        assert len(losses) == N_STEPS
        assert min(losses[-5:]) < losses[0] - 0.3
        return losses, weights

    return train


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_as_one_process(
    name: str, folder: Path, alone: Callable[..., Outcome]
) -> None:
    n_ranks, *changes = STRATEGIES[name]
    found = run(folder, name.replace(" ", "-"), n_ranks, *changes)
    assert_same(found, alone(*[one for one in changes if one.startswith(OF_THE_TRAINING)]))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", IMAGE_STRATEGIES)
def test_every_strategy_for_images_trains_as_one_process(
    name: str, folder: Path, alone_on_images: Callable[[str], Outcome]
) -> None:
    recipe, n_ranks, *changes = IMAGE_STRATEGIES[name]
    path = str(HERE / f"{recipe}.toml")
    words = name.replace(" ", "-")
    found = run(folder, words, n_ranks, *changes, recipe=path, data="images")
    assert_same(found, alone_on_images(recipe))


def assert_same(found: Outcome, expected: Outcome) -> None:
    pairs = list(zip(found[0], expected[0], strict=True))
    assert max(abs(loss - one) / one for loss, one in pairs) <= LOSS_BOUND
    assert found[1].keys() == expected[1].keys()
    for key, one in expected[1].items():
        one, other = one.double(), found[1][key].double()  # counters of norms are whole numbers
        difference = torch.linalg.vector_norm(other - one)
        scale = torch.linalg.vector_norm(one).clamp(min=NEXT_TO_ZERO)
        assert difference <= WEIGHT_BOUND * scale, key
