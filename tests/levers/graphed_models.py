"""A model whose calls are replayed, beside the model itself, in loops that have to be the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tape import TapeRecorder
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.levers.common.graphed import GraphedModel
from hotlap.levers.common.unchanged import Settings

N_STEPS = 10
N_FEATURES = 6


class Graphed:
    """A model with its call replaced, and what was told of it."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.told: list[tuple[str, str]] = []
        self.model, self.recorder = model, TapeRecorder(model)
        self.graphed = GraphedModel(
            torch, model, settings, self.recorder, lambda how, what: self.told.append((how, what))
        )
        model._compiled_call_impl = self.graphed

    @property
    def n_replays(self) -> int:
        """In training: before a recording is used, it is replayed in both ways to be compared."""
        n_recorded = sum(how == "done" for how, _ in self.told)
        return self.recorder.n_replays - 2 * n_recorded

    @property
    def failures(self) -> list[str]:
        return [what for how, what in self.told if how == "failed"]


class Net(nn.Module):
    """Normalised, so that there are buffers; with a second head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(N_FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.0)
        self.second, self.other = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Any:
        hidden = self.drop(torch.relu(self.norm(self.first(x)))) * scale
        return {"main": self.second(hidden), "other": self.other(hidden), "scale": scale}


def batch(step: int, n: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return (
        torch.randn(n, N_FEATURES, generator=draw),
        torch.randint(3, (n,), generator=draw),
    )


def loss_of(model: nn.Module, step: int, n: int = 8, **options: Any) -> Tensor:
    x, y = batch(step, n)
    return F.cross_entropy(model(x, **options)["main"], y)


def update(model: nn.Module, optimizer: Any, step: int, **options: Any) -> float:
    optimizer.zero_grad()
    loss = loss_of(model, step, **options)
    loss.backward()
    optimizer.step()
    return loss.item()


def optimizer_of(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


Loop = Callable[[nn.Module], list[float]]


def plain(model: nn.Module) -> list[float]:
    optimizer = optimizer_of(model)
    return [update(model, optimizer, step) for step in range(N_STEPS)]


def with_a_hook_on_a_weight_without_gradients(model: nn.Module) -> list[float]:
    model.other.weight.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[union-attr]
    return plain(model)


def with_both_results(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output["main"], y) + F.cross_entropy(output["other"], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(loop: Loop, model: nn.Module) -> tuple[list[float], list[float]]:
    torch.manual_seed(3)
    random.seed(3)
    numbers = loop(model)
    return numbers, [float(one.detach().double().sum()) for one in model.state_dict().values()]


def new_model(kind: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(1)
    return kind()


def compare(loop: Loop, settings: Settings, kind: Callable[[], nn.Module] = Net) -> Graphed:
    """Both trainings, which have to be the same; what was done to the second."""
    expected = trained(loop, new_model(kind))
    one = Graphed(new_model(kind), settings)
    assert trained(loop, one.model) == expected
    return one
