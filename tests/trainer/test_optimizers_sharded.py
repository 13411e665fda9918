"""Every optimizer over two processes ends at the weights that one process alone ends at."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from optimizing import LR, NAMES, every_optimizer, settings_of
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from two_ranks import LIMIT_S, N_RANKS, on_two_ranks

from hotlap.distributed.zero import ShardedUpdate
from hotlap.errors import UsageError
from hotlap.trainer.optimizers.build import build_optimizer


class Odd(nn.Module):
    """Sizes that two ranks cannot share evenly; of the head one rank has nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 9)
        self.up = nn.Linear(9, 10)
        self.down = nn.Linear(10, 9)
        self.hidden = nn.Linear(9, 9, bias=False)
        self.norm = nn.LayerNorm(9)
        self.head = nn.Linear(9, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).tanh()
        y = y + self.down(self.up(y).relu())
        return self.head(self.norm(self.hidden(y)))


def odd_batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=draw, dtype=torch.float64)
    return x, x.prod(1, keepdim=True)


def train_odd(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    part: slice,
    sharded: ShardedUpdate | None = None,
) -> None:
    for step in steps:
        x, y = odd_batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[part]), y[part]).backward()
        if sharded is not None:
            sharded.take_gradients()
        optimizer.step()
        if sharded is not None:
            sharded.share_weights()


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone()
        for name, one in model.named_parameters()
    }


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max((found[name] - one).abs().max().item() for name, one in expected.items())


def fsdp(model: nn.Module) -> nn.Module:
    fully_shard(model.hidden)
    return fully_shard(model)


def tensor_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (N_RANKS,))
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def distances_of(name: Any, rank: int) -> dict[str, float]:
    """How far trainings over two ranks end from one in a single process, after 5 steps."""
    torch.manual_seed(7)
    start = Odd().double()
    chosen = settings_of(name, weight_decay=0.05, lr=0.5 * LR[name])
    alone = copy.deepcopy(start)
    everything, half = slice(None), slice(8 * rank, 8 * rank + 8)
    train_odd(alone, build_optimizer(alone, chosen), range(5), everything)
    expected = whole_weights(alone)
    found = {"moved": distance(expected, whole_weights(start))}

    sharded = fsdp(copy.deepcopy(start))
    optimizer = build_optimizer(sharded, chosen)
    train_odd(sharded, optimizer, range(3), half)
    saved = copy.deepcopy(get_optimizer_state_dict(sharded, optimizer))
    resumed = fsdp(copy.deepcopy(start))
    resumed.load_state_dict(copy.deepcopy(sharded.state_dict()))
    resumed_optimizer = build_optimizer(resumed, chosen)
    set_optimizer_state_dict(resumed, resumed_optimizer, saved)
    for model, by in ((sharded, optimizer), (resumed, resumed_optimizer)):
        train_odd(model, by, range(3, 5), half)
    found["fsdp"] = distance(whole_weights(sharded), expected)
    found["fsdp, resumed"] = distance(whole_weights(resumed), expected)

    whole = copy.deepcopy(start)
    replica = DistributedDataParallel(whole)
    shares = ShardedUpdate(whole, init_device_mesh("cpu", (N_RANKS,)))
    by = build_optimizer(shares.model, chosen)
    train_odd(replica, by, range(5), half, shares)
    found["zero"] = distance(whole_weights(whole), expected)

    # Some parameters are cut, others are plain tensors.
    cut = tensor_parallel(copy.deepcopy(start))
    train_odd(cut, build_optimizer(cut, chosen), range(5), everything)
    found["tensor parallel"] = distance(whole_weights(cut), expected)
    return found


def all_distances(rank: int) -> dict[str, dict[str, float]]:
    """What each of the processes does."""
    return {name: distances_of(name, rank) for name in NAMES}


@pytest.fixture(scope="module")
def distances(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Of each optimizer; two processes work them out once."""
    return on_two_ranks(all_distances, tmp_path_factory.mktemp("ranks"))


@every_optimizer
@pytest.mark.parametrize("way", ["fsdp", "fsdp, resumed", "zero", "tensor parallel"])
@pytest.mark.timeout(2 * LIMIT_S)
def test_two_ranks_end_at_the_weights_of_one(
    distances: dict[str, dict[str, float]], name: Any, way: str
) -> None:
    assert distances[name]["moved"] > 1e-2
    assert distances[name][way] < 1e-5


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_of_sharded_parameters_only_adamw_is_fused(tmp_path: Path, name: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = fully_shard(Odd())
        assert build_optimizer(model, settings_of(name)).defaults["fused"] is (name == "adamw")
        if name == "sgd":
            with pytest.raises(UsageError, match="no fused sgd for sharded parameters"):
                build_optimizer(model, settings_of(name, fused=True))
    finally:
        dist.destroy_process_group()
