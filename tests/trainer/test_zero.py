"""ZeRO-1: replicas share the optimizer state, and nothing else changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizing import NAMES, settings_of
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from training import losses, make_tokens, train, weights
from two_ranks import LIMIT_S, N_RANKS, on_two_ranks

from hotlap.distributed.mesh import MeshSettings, lay_out
from hotlap.distributed.zero import ShardedUpdate
from hotlap.errors import UsageError
from hotlap.trainer.clip import clip_gradients
from hotlap.trainer.optimizers.build import build_optimizer


class Convolutions(nn.Module):
    """Kernels with their channels innermost, a scalar, and rows that two ranks share unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 9, 3)
        self.hidden = nn.Conv2d(9, 7, 3)
        self.scale = nn.Parameter(torch.tensor(0.9))
        self.head = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.stem(x).relu()) * self.scale
        return self.head(x.mean((2, 3)))


def start_model() -> nn.Module:
    torch.manual_seed(3)
    return Convolutions().to(memory_format=torch.channels_last)


def batch(step: int) -> Tensor:
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(step))


def replicas() -> tuple[nn.Module, nn.Module, ShardedUpdate]:
    whole = start_model()
    model = DistributedDataParallel(whole, gradient_as_bucket_view=True, static_graph=True)
    return whole, model, ShardedUpdate(whole, init_device_mesh("cpu", (N_RANKS,)))


def difference_to_one_process(name: Any, rank: int) -> float:
    alone, chosen = start_model(), settings_of(name, weight_decay=0.1)
    alone_optimizer = build_optimizer(alone, chosen)
    whole, model, sharded = replicas()
    optimizer = build_optimizer(sharded.model, chosen)
    for step in range(5):
        x = batch(step)
        alone(x).square().mean().backward()
        clip_gradients(alone.parameters(), 0.5)
        alone_optimizer.step()
        alone_optimizer.zero_grad()
        model(x[4 * rank : 4 * rank + 4]).square().mean().backward()
        sharded.take_gradients()
        clip_gradients(sharded.model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        sharded.share_weights()
    pairs = zip(whole.parameters(), alone.parameters(), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


def all_differences(rank: int) -> dict[str, float]:
    return {name: difference_to_one_process(name, rank) for name in NAMES}


@pytest.mark.timeout(2 * LIMIT_S)
def test_every_optimizer_ends_at_the_weights_of_one_process(tmp_path: Path) -> None:
    differences = on_two_ranks(all_differences, tmp_path)
    assert differences.keys() == set(NAMES)
    assert max(differences.values()) < 1e-5, differences


def state_sizes(rank: int) -> tuple[int, int]:
    """Elements of Adam's moments on this rank, and of all parameters."""
    wide = nn.Sequential(nn.Linear(64, 130), nn.Linear(130, 64))
    model = DistributedDataParallel(wide)
    sharded = ShardedUpdate(wide, init_device_mesh("cpu", (N_RANKS,)))
    optimizer = build_optimizer(sharded.model, settings_of("adamw"))
    model(torch.ones(1, 64)).sum().backward()
    sharded.take_gradients()
    optimizer.step()
    kept = [value for one in optimizer.state.values() for value in one.values()]
    n_kept = sum(value.to_local().numel() for value in kept if value.dim())
    return n_kept, sum(one.numel() for one in wide.parameters())


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_rank_keeps_its_part_of_the_state(tmp_path: Path) -> None:
    n_kept, n_parameters = on_two_ranks(state_sizes, tmp_path)
    assert n_kept == 2 * n_parameters / N_RANKS


def step_after_an_overflow(rank: int) -> tuple[bool, bool, float]:
    """Whether an update was left out and the next one made, and the scale in between."""
    whole, model, sharded = replicas()
    optimizer = build_optimizer(sharded.model, settings_of("adamw"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    were_changed = []
    for is_bad in (True, False):
        before = copy.deepcopy(whole.state_dict())
        scaler.scale(model(batch(0)).square().mean()).backward()
        if is_bad:
            whole.head.weight.grad.fill_(torch.inf)  # one row, which is rank 0's alone
        sharded.take_gradients()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        sharded.share_weights()
        after = whole.state_dict()
        were_changed.append(any(not torch.equal(before[name], after[name]) for name in after))
    return were_changed[0], were_changed[1], scaler.get_scale()


@pytest.mark.timeout(2 * LIMIT_S)
def test_an_overflow_in_one_part_skips_the_update_of_all(tmp_path: Path) -> None:
    was_changed, was_changed_after, scale = on_two_ranks(step_after_an_overflow, tmp_path)
    assert not was_changed
    assert was_changed_after
    assert scale == 2.0


CUT = ("shard_optimizer=true", "schedule.name=constant")


@pytest.mark.timeout(400)
def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    changes = (tokens, *CUT, "batch=4", "dropout=0.1", "ema_decay=0.9")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    for folder, steps in ((whole, 20), (parts, 9), (parts, 20)):
        done = train(folder, *changes, f"steps={steps}", n_ranks=2)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "going on from" in done.stderr
    assert losses(parts) == losses(whole)
    assert weights(parts) == weights(whole)


@pytest.mark.timeout(400)
def test_a_checkpoint_of_two_ranks_is_read_by_four_and_by_one(tmp_path: Path) -> None:
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    assert train(whole, tokens, "batch=8", "schedule.name=constant").returncode == 0
    for n_ranks, n_batch, steps in ((2, 4, 6), (4, 2, 12), (1, 8, 20)):
        changes = (*CUT, f"batch={n_batch}", f"steps={steps}")
        done = train(parts, tokens, *changes, n_ranks=n_ranks)
        assert done.returncode == 0, done.stderr[-3000:]
    found, expected = losses(parts), losses(whole)
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - loss) / loss for step, loss in expected.items()) <= 1e-5


def test_it_is_for_replicas_alone() -> None:
    lay_out(MeshSettings(shard_optimizer=True), 0, 1)
    for other in ("shard", "tp", "pp"):
        with pytest.raises(UsageError, match=r"mesh\.shard_optimizer: it goes with dp alone"):
            lay_out(MeshSettings(shard_optimizer=True, **{other: 2}), 0, 4)
