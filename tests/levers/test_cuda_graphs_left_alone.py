"""A model that is changed on the way, or whose Python decides, trains on as it would."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from graphed_models import (
    N_STEPS,
    Graphed,
    Loop,
    Net,
    batch,
    compare,
    loss_of,
    new_model,
    optimizer_of,
    plain,
    trained,
    update,
)
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hotlap.levers.common.graphed import MOST_WATCHED, GraphedModel
from hotlap.levers.common.unchanged import Settings

CANNOT = "it cannot be recorded"


# What changes on the way --------------------------------------------------------------------------


def freezing(model: Any, optimizer: Any) -> None:
    model.first.requires_grad_(False)


def another_setting(model: Any, optimizer: Any) -> None:
    model.norm.momentum = 0.5


def another_weight(model: Any, optimizer: Any) -> None:
    model.first.weight.data = torch.ones_like(model.first.weight)


def another_layer(model: Any, optimizer: Any) -> None:
    model.second = nn.Linear(8, 3)
    optimizer.add_param_group({"params": list(model.second.parameters())})


def weights_from_a_file(model: Any, optimizer: Any) -> None:
    model.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()})


def one_layer_not_training(model: Any, optimizer: Any) -> None:
    model.norm.eval()


def one_more_layer(model: Any, optimizer: Any) -> None:
    model.more.append(nn.Linear(8, 8))
    optimizer.add_param_group({"params": list(model.more[-1].parameters())})


def another_buffer(model: Any, optimizer: Any) -> None:
    model.register_buffer("factor", torch.full((8,), 0.5))


def another_function(model: Any, optimizer: Any) -> None:
    model.activation = torch.tanh


def a_number_of_numpy(model: Any, optimizer: Any) -> None:
    model.scale = numpy.exp(-1.0)


def a_longer_list(model: Any, optimizer: Any) -> None:
    model.scales.append(0.5)


def an_entry(model: Any, optimizer: Any) -> None:
    model.options["scale"] = 0.5


def an_attribute_less(model: Any, optimizer: Any) -> None:
    del model.scale


def another_tensor(model: Any, optimizer: Any) -> None:
    model.shift = torch.ones(3)


def another_forward(model: Any, optimizer: Any) -> None:
    forward = model.forward
    model.forward = lambda x: {"main": forward(x)["main"] * 0.5}


class Adjustable(Net):
    """Its forward goes by all kinds of things that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList([nn.Linear(8, 8)])
        self.register_buffer("factor", torch.ones(8))
        self.activation: Any = torch.relu
        self.scale: Any = 1.0
        self.scales, self.options = [1.0], {"scale": 1.0}
        self.shift = torch.zeros(3)

    def forward(self, x: Tensor, **options: Any) -> Any:
        hidden = self.activation(self.norm(self.first(x))) * self.factor
        for layer in self.more:
            hidden = self.activation(layer(hidden))
        scale = float(getattr(self, "scale", 2.0)) * math.prod(self.scales)
        return {"main": self.second(hidden) * scale * self.options["scale"] + self.shift}


@pytest.mark.parametrize(
    "change",
    [
        freezing,
        another_setting,
        another_weight,
        another_layer,
        weights_from_a_file,
        one_layer_not_training,
        one_more_layer,
        another_buffer,
        another_function,
        a_number_of_numpy,
        a_longer_list,
        an_entry,
        an_attribute_less,
        another_tensor,
        another_forward,
    ],
    ids=lambda change: change.__name__,
)
def test_a_model_that_is_changed_trains_on_as_it_would(
    change: Callable[[Any, Any], None], settings: Settings
) -> None:
    def loop(model: nn.Module) -> list[float]:
        optimizer = optimizer_of(model)
        losses = [update(model, optimizer, step) for step in range(N_STEPS)]
        change(model, optimizer)
        return losses + [update(model, optimizer, step) for step in range(N_STEPS)]

    one = compare(loop, settings, Adjustable)
    assert one.failures == []
    assert one.n_replays >= 4 * (N_STEPS - 4)  # before and after


def test_a_hook_that_comes_later_is_called(settings: Settings) -> None:
    seen: list[float] = []

    def loop(model: Any) -> list[float]:
        optimizer = optimizer_of(model)
        losses = [update(model, optimizer, step) for step in range(N_STEPS)]
        model.first.register_forward_hook(
            lambda module, args, out: seen.append(float(out.detach().sum()))
        )
        losses += [update(model, optimizer, step) for step in range(N_STEPS)]
        losses += seen
        seen.clear()
        return losses

    one = compare(loop, settings)
    assert one.failures == ["it has hooks, which Python has to be asked for"]


# What is left alone -------------------------------------------------------------------------------


class Counting(Net):
    n_calls = 0

    def forward(self, x: Tensor, **options: Any) -> Any:
        self.n_calls += 1
        return super().forward(x, scale=1.0 / self.n_calls)


class Remembering(Net):
    def forward(self, x: Tensor, **options: Any) -> Any:
        self.last = super().forward(x)
        return self.last


class Listing(Net):
    """Called with a list, as its `__call__` makes of what it is given."""

    def __call__(self, x: Any, **options: Any) -> Any:
        return super().__call__([x])

    def forward(self, x: Any, **options: Any) -> Any:
        return super().forward(x[0])


class Skipping(Net):
    def forward(self, x: Tensor, **options: Any) -> Any:
        return super().forward(x, scale=2.0 if random.random() < 0.5 else 1.0)


class Drawing(Net):
    def forward(self, x: Tensor, **options: Any) -> Any:
        return super().forward(x, scale=float(torch.rand(())))


class Noting(Net):
    """Keeps its losses in a list, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Tensor] = []

    def forward(self, x: Tensor, **options: Any) -> Any:
        result = super().forward(x)
        self.notes.append(result["other"].pow(2).mean())
        return result


class CountingInADict(Net):
    def __init__(self) -> None:
        super().__init__()
        self.counts = {"calls": 0}

    def forward(self, x: Tensor, **options: Any) -> Any:
        self.counts["calls"] += 1
        return super().forward(x, scale=1.0 / self.counts["calls"])


class DrawingItsOwn(Net):
    """From a generator of numpy's, of which it holds a method alone."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = numpy.random.default_rng(0).random

    def forward(self, x: Tensor, **options: Any) -> Any:
        return super().forward(x, scale=float(self.draw()))


class Normalising(Net):
    """Changes its input in place."""

    def forward(self, x: Tensor, **options: Any) -> Any:
        return super().forward(x.sub_(x.mean(0)))


class Hooking(Net):
    """Has its backward note something."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def forward(self, x: Tensor, **options: Any) -> Any:
        self.norms.clear()
        result = super().forward(x)
        result["main"].register_hook(lambda gradient: self.norms.append(gradient.norm().item()))
        return {**result, "main": result["main"] * 1.0}


class Learning(Net):
    """With a tensor that learns and is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.zeros(2).requires_grad_()

    def forward(self, x: Tensor, **options: Any) -> Any:
        first, second = torch.softmax(self.mix, 0)
        result = super().forward(x)
        return {"main": first * result["main"] + second * result["other"]}


class Averaging(Net):
    """Keeps a mean in a weight that no optimizer moves."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, x: Tensor, **options: Any) -> Any:
        hidden = torch.relu(self.first(x))
        with torch.no_grad():
            self.center.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return {"main": self.second(hidden - self.center)}


class Fading(Net):
    """Computes with a buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("strength", torch.ones(()))

    def forward(self, x: Tensor, **options: Any) -> Any:
        self.strength.mul_(0.99)  # type: ignore[operator]
        return {"main": super().forward(x)["main"] * self.strength}


class Table(Net):
    """Gives a weight of its own, of which a few rows get gradients."""

    def forward(self, x: Tensor, **options: Any) -> Any:
        return {"main": self.first.weight.clone()}


class CheckpointsWithDropout(Net):
    def forward(self, x: Tensor, **options: Any) -> Any:
        def hidden(x: Tensor) -> Tensor:
            return F.dropout(torch.relu(self.first(x)), 0.3)

        return {"main": self.second(checkpoint(hidden, x, use_reentrant=False))}


class Certain(Net):
    """Gives a distribution."""

    def forward(self, x: Tensor, **options: Any) -> Any:
        result = super().forward(x)
        return {**result, "law": Normal(result["main"], 1.0, validate_args=False)}


def with_notes(model: Any) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(MOST_WATCHED + 5):
        model.notes.clear()
        optimizer.zero_grad()
        loss = loss_of(model, step) + sum(model.notes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_norms(model: Any) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(MOST_WATCHED + 5):
        losses += [update(model, optimizer, step), *model.norms]
        model.norms.clear()
    return losses


def with_what_learns_beside(model: Any) -> list[float]:
    optimizer = torch.optim.SGD([model.mix, *model.parameters()], lr=0.1)
    losses = [update(model, optimizer, step) for step in range(3 * N_STEPS)]
    return losses + list(model.mix.tolist())


def with_a_penalty(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(MOST_WATCHED + 5):
        x, y = batch(step)
        x.requires_grad_()
        logits = model(x)["main"]
        ones = torch.ones_like(logits)  # with which torch sees nothing to differentiate twice
        (slope,) = torch.autograd.grad(logits, x, ones, create_graph=True)
        loss = F.cross_entropy(logits, y) + slope.pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def looked_up(model: nn.Module) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(MOST_WATCHED + 5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.embedding(y, model(x)["main"], sparse=True).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def checkpointed(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(MOST_WATCHED + 5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False)["main"], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_weights_of_the_moment(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(3 * N_STEPS):
        x, y = batch(step)
        weights = {name: one * 0.9 for name, one in model.named_parameters()}
        logits = torch.func.functional_call(model, weights, (x,))["main"]
        losses.append(update(model, optimizer, step))
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
    return losses


def twice_before_backward(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(MOST_WATCHED):
        optimizer.zero_grad()
        loss = loss_of(model, 2 * step) + loss_of(model, 2 * step + 1)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def long(model: nn.Module) -> list[float]:
    optimizer = optimizer_of(model)
    return [update(model, optimizer, step) for step in range(MOST_WATCHED + 5)]


def other_shapes_each_time(model: nn.Module) -> list[float]:
    optimizer = optimizer_of(model)
    return [update(model, optimizer, i, n=2 + i) for i in range(MOST_WATCHED + 5)]


def exchanged_each_time(model: Any) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS * 3):
        model.other.requires_grad_(step % 2 == 0)
        losses.append(update(model, optimizer, step))
    return losses


@pytest.mark.parametrize(
    ("kind", "loop", "why"),
    [
        (Counting, long, "its weights or settings are exchanged all the time"),
        (Remembering, long, "its weights or settings are exchanged all the time"),
        (Skipping, long, "its forward draws random numbers on the host"),
        (Drawing, long, "its forward draws random numbers on the host"),
        (Listing, long, "it is called with more than plain values and tensors on its GPU"),
        (Net, twice_before_backward, "its backward does not come before its next call"),
        (Net, exchanged_each_time, "its weights or settings are exchanged all the time"),
        (Noting, with_notes, "its forward changes what its parts hold"),
        (CountingInADict, long, "its weights or settings are exchanged all the time"),
        (DrawingItsOwn, long, "its weights or settings are exchanged all the time"),
        (Normalising, long, "its forward changes its inputs"),
        (Hooking, with_norms, "its backward changes what its parts hold"),
        (Learning, with_what_learns_beside, "its weights or settings are exchanged all the time"),
        (Certain, plain, f"{CANNOT}: its result holds a Normal, which only Python can make"),
        (Averaging, plain, f"{CANNOT}: its forward changes what it computes with"),
        (Fading, plain, f"{CANNOT}: its forward changes what it computes with"),
        (Table, looked_up, "gradients of its result are sparse"),
        (Net, with_a_penalty, "its gradients are differentiated themselves"),
        (Net, checkpointed, "its calls are looked into, by checkpoints or a mode of torch's"),
        (Net, with_weights_of_the_moment, "its weights or settings are exchanged all the time"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_python_decides_is_not_replayed(
    kind: Callable[[], nn.Module], loop: Loop, why: str, settings: Settings
) -> None:
    one = compare(loop, settings, kind)
    assert one.failures == [why]
    assert one.n_replays == 0


@pytest.mark.usefixtures("draws_on_the_device")
def test_checkpoints_that_draw_random_numbers_again_are_not_replayed(settings: Settings) -> None:
    """Forward and backward are two graphs, and the second knows nothing of what the first drew."""
    one = compare(plain, settings, CheckpointsWithDropout)
    assert one.failures == [
        f"{CANNOT}: its backward draws the random numbers of its checkpoints again"
    ]
    assert one.n_replays == 0


def test_a_model_that_moved_to_another_device_is_left_alone(settings: Settings) -> None:
    one = Graphed(new_model(), settings)
    plain(one.model)
    one.model.to("meta")
    optimizer = optimizer_of(one.model)
    x, y = (part.to("meta") for part in batch(0))
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(one.model(x)["main"], y).backward()
    assert one.failures == ["it is on another device now"]


def test_shapes_that_never_come_again_are_not_replayed(settings: Settings) -> None:
    one = compare(other_shapes_each_time, settings)
    assert (one.n_replays, one.told) == (0, [])


def test_calls_of_two_kinds_before_one_backward_are_not_both_replayed(settings: Settings) -> None:
    """Their recordings share their memory."""

    def loop(model: nn.Module) -> list[float]:
        optimizer = optimizer_of(model)
        losses = [update(model, optimizer, i, n=5 if i % 2 else 8) for i in range(2 * N_STEPS)]
        for step in range(N_STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, 2 * step, n=8) + loss_of(model, 2 * step + 1, n=5)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    one = compare(loop, settings)
    assert one.failures == []
    assert one.n_replays == 2 * (2 * N_STEPS - 6) + 2 * N_STEPS  # one of two in the second half


def test_a_failure_of_ours_leaves_the_training_as_it_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(GraphedModel, "_watch_gradients", fail)
    assert compare(plain, settings).failures == ["ZeroDivisionError: a mistake"]
    monkeypatch.setattr(GraphedModel, "_key_of", fail)
    assert compare(plain, settings).failures == ["ZeroDivisionError: a mistake"]


def test_a_recording_that_fails_leaves_the_training_as_it_is(settings: Settings) -> None:
    expected = trained(plain, new_model())
    one = Graphed(new_model(), settings)

    def refuse(function: Any) -> Any:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nSearch for …")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    one.recorder.record = refuse  # type: ignore[method-assign]
    assert trained(plain, one.model) == expected
    assert one.failures == [
        "it cannot be recorded: operation not permitted when stream is capturing"
    ]


def test_weights_that_are_reached_by_another_way_are_left_alone(settings: Settings) -> None:
    class Hidden(Net):
        def __init__(self) -> None:
            super().__init__()
            self.held = [self.first.weight]

        def forward(self, x: Tensor, **options: Any) -> Any:
            hidden = torch.relu(F.linear(x, self.held[0]))
            return {"main": self.second(hidden)}

    one = compare(plain, settings, Hidden)
    assert one.failures == [
        "it cannot be recorded: gradients go to more than its parameters and inputs"
    ]
    assert one.n_replays == 0
