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
from training import HERE, TIMEOUT_S, TINY, environment, make_tokens, words_of

LOSS_BOUND = 1e-5
WEIGHT_BOUND = 1e-4
N_STEPS = 20

STRATEGIES = {
    "accumulate": (1, "batch=4", "accumulate=2"),
    "dp": (2, "batch=4"),
    "dp accumulate": (2, "batch=2", "accumulate=2"),
    "shard": (2, "batch=4", "shard=2"),
    "shard accumulate": (2, "batch=2", "accumulate=2", "shard=2"),
    "tp": (2, "batch=8", "tp=2"),
    "tp, sequence parallel": (2, "batch=8", "tp=2", "sequence_parallel=true"),
    "dp shard": (4, "batch=2", "dp=2", "shard=2"),
    "dp tp": (4, "batch=4", "dp=2", "tp=2"),
    "shard tp": (4, "batch=4", "shard=2", "tp=2"),
    "pp": (2, "batch=8", "pp=2", "tied=false"),
    "pp, gpipe": (2, "batch=8", "pp=2", "tied=false", "mesh.schedule=gpipe"),
    "pp, interleaved": (2, "batch=8", "pp=2", "tied=false", "mesh.schedule=interleaved"),
    "pp dp": (4, "batch=4", "pp=2", "dp=2", "tied=false", "micro_batches=2"),
    "pp shard": (4, "batch=4", "pp=2", "shard=2", "tied=false", "micro_batches=2"),
    "pp tp": (4, "batch=8", "pp=2", "tp=2", "tied=false"),
    "checkpointed blocks": (1, "batch=8", "checkpoint_blocks=1"),
}

Outcome = tuple[list[float], dict[str, torch.Tensor]]


def run(folder: Path, name: str, n_ranks: int, *changes: str) -> Outcome:
    result, weights = folder / f"{name}.json", folder / f"{name}.safetensors"
    script = str(HERE / "train_and_tell.py")
    words = [script, str(result), str(weights), TINY, f"data.path={folder / 'tokens'}", *changes]
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
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[bool], Outcome]:
    """One process, the whole batch; with the output layer tied to the embedding or not."""

    @cache
    def train(tied: bool) -> Outcome:
        losses, weights = run(folder, f"alone-{tied}", 1, "batch=8", f"tied={str(tied).lower()}")
        assert len(losses) == N_STEPS
        assert losses[-1] < losses[0] - 0.5
        return losses, weights

    return train


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_as_one_process(
    name: str, folder: Path, alone: Callable[[bool], Outcome]
) -> None:
    n_ranks, *changes = STRATEGIES[name]
    losses, weights = run(folder, name.replace(" ", "-"), n_ranks, *changes)
    expected = alone("tied=false" not in changes)
    pairs = list(zip(losses, expected[0], strict=True))
    assert max(abs(loss - one) / one for loss, one in pairs) <= LOSS_BOUND
    assert weights.keys() == expected[1].keys()
    for key, one in expected[1].items():
        difference = torch.linalg.vector_norm(weights[key] - one)
        assert difference <= WEIGHT_BOUND * torch.linalg.vector_norm(one), key
