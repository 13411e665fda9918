"""A model whose calls are replayed trains as the model itself does, to the last bit.

There is no GPU here: what stands in for a CUDA graph does the operations of the first time again,
in their memory (tape.py). Which calls are watched, recorded, replayed or left alone, what is copied
and where gradients go is the lever's own; CUDA graphs themselves are in tests/gpu.
"""

from __future__ import annotations

import copy
import gc
import math
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from lever_runs import a_workload
from tape import record_on_tape
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hotlap.levers import cuda_graphs
from hotlap.levers.common import graphed
from hotlap.levers.common.graphed import MOST_RECOMPUTED, MOST_WATCHED, GraphedModel
from hotlap.levers.common.process import Process
from hotlap.levers.common.unchanged import Settings
from hotlap.levers.common.workload import Seen

CANNOT = "it cannot be recorded"
N_STEPS = 10
N_FEATURES = 6


class Graphed:
    """A model with its call replaced, and what was told of it."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.told: list[tuple[str, str]] = []
        self.n_replays = 0
        self.model = model
        self.graphed = GraphedModel(
            torch, model, settings, self._record, lambda how, what: self.told.append((how, what))
        )
        model._compiled_call_impl = self.graphed

    def _record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        first, replay = record_on_tape(self.model, function)

        def counted() -> None:
            self.n_replays += 1
            replay()

        return first, counted

    @property
    def failures(self) -> list[str]:
        return [what for how, what in self.told if how == "failed"]


@pytest.fixture
def settings() -> Iterator[Settings]:
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    yield Settings(torch, process)
    process.undo()


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


# Loops of scripts: each trains a model and returns numbers to compare -----------------------------

Loop = Callable[[nn.Module], list[float]]


def plain(model: nn.Module) -> list[float]:
    optimizer = optimizer_of(model)
    return [update(model, optimizer, step) for step in range(N_STEPS)]


def with_options(model: nn.Module) -> list[float]:
    optimizer = optimizer_of(model)
    return [update(model, optimizer, step, scale=0.5) for step in range(N_STEPS)]


def keeping_gradients_in_place(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        loss = loss_of(model, step)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def accumulating(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(2 * N_STEPS):
        loss = loss_of(model, step) / 2
        loss.backward()
        if step % 2:
            losses.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def keeping_results(model: nn.Module) -> list[float]:
    optimizer, results, gradients = optimizer_of(model), [], []
    for step in range(N_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        output = model(x)
        results.append(output["main"])
        F.cross_entropy(output["main"], y).backward()
        gradients += [p.grad for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return [float(one.detach().sum()) for one in (*results, *gradients)]


def changing_results(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        logits = model(x)["main"]
        logits.mul_(0.5)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_validation(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        losses.append(update(model, optimizer, step))
        model.eval()
        with torch.no_grad():
            losses.append(loss_of(model, 100).item())
        model.train()
    return losses


def with_validation_that_has_gradients(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(3 * N_STEPS):
        losses.append(update(model, optimizer, step))
        losses.append(loss_of(model.eval(), 100).item())
        model.train()
    return losses


def with_a_smaller_last_batch(model: nn.Module) -> list[float]:
    optimizer = optimizer_of(model)
    return [update(model, optimizer, i, n=5 if i % 4 == 3 else 8) for i in range(3 * N_STEPS)]


def backward_twice(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_gradients_asked_for(model: nn.Module) -> list[float]:
    parameters = [*model.first.parameters(), *model.second.parameters()]  # type: ignore[union-attr]
    losses = []
    for step in range(N_STEPS):
        loss = loss_of(model, step)
        for one, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            one.data.sub_(gradient, alpha=0.1)
        losses.append(loss.item())
    return losses


def with_inputs_that_learn(model: nn.Module) -> list[float]:
    embedding = nn.Parameter(batch(0)[0])
    optimizer = torch.optim.SGD([embedding, *model.parameters()], lr=0.1)
    losses = []
    for step in range(N_STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(embedding * 2)["main"], batch(step)[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_a_hook_on_a_weight(model: nn.Module) -> list[float]:
    model.first.weight.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[union-attr]
    return plain(model)


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


def averaged(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        losses.append(update(model, optimizer, step))
        twin = copy.deepcopy(model).eval()
        losses.append(loss_of(twin, 100).item())
    return losses


REPLAYED: list[Loop] = [
    plain,
    with_options,
    keeping_gradients_in_place,
    accumulating,
    keeping_results,
    changing_results,
    with_validation,
    with_validation_that_has_gradients,
    with_a_smaller_last_batch,
    backward_twice,
    with_gradients_asked_for,
    with_inputs_that_learn,
    with_a_hook_on_a_weight,
    with_a_hook_on_a_weight_without_gradients,
    with_both_results,
    averaged,
]


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


@pytest.mark.parametrize("loop", REPLAYED, ids=lambda loop: loop.__name__)
def test_a_replayed_training_is_the_same_to_the_last_bit(loop: Loop, settings: Settings) -> None:
    one = compare(loop, settings)
    assert one.failures == []
    assert one.n_replays >= 2 * (N_STEPS - 3)
    assert ("done", "Net is replayed, forward and backward") in one.told


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


def test_a_weight_that_gets_no_gradient_any_more_is_left_out_of_updates(settings: Settings) -> None:
    """With zeros in the place of none, weight decay would go on."""

    def loop(model: nn.Module) -> list[float]:
        optimizer = optimizer_of(model)
        losses = with_both_results(model)
        return losses + [update(model, optimizer, step) for step in range(N_STEPS)]

    one = compare(loop, settings)
    assert one.failures == []
    n_recomputed = MOST_RECOMPUTED + 1  # forward is replayed there, and backward is not
    assert one.n_replays == 2 * (N_STEPS - 3) + n_recomputed + 2 * (N_STEPS - n_recomputed - 4)


def test_results_whose_losses_go_back_one_by_one_add_up(settings: Settings) -> None:
    def loop(model: nn.Module) -> list[float]:
        optimizer, losses = optimizer_of(model), []
        for step in range(N_STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            output = model(x)
            first, second = (F.cross_entropy(output[name], y) for name in ("main", "other"))
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
            losses += [first.item(), second.item()]
        return losses

    one = compare(loop, settings)
    assert one.failures == []
    assert one.n_replays == 3 * (N_STEPS - 3)


def test_a_call_before_the_backward_of_a_replay_runs_as_it_is(settings: Settings) -> None:
    def loop(model: nn.Module) -> list[float]:
        optimizer = optimizer_of(model)
        losses = [update(model, optimizer, step) for step in range(N_STEPS)]
        for step in range(N_STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, 2 * step) + loss_of(model, 2 * step + 1)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert compare(loop, settings).failures == []


def test_a_recording_that_fails_leaves_the_training_as_it_is(settings: Settings) -> None:
    expected = trained(plain, new_model())
    one = Graphed(new_model(), settings)

    def refuse(function: Any) -> Any:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nSearch for …")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    one.graphed._record = refuse
    assert trained(plain, one.model) == expected
    assert one.failures == [
        "it cannot be recorded: operation not permitted when stream is capturing"
    ]


class Recurrent(nn.Module):
    """torch keeps the weights of such layers in a list of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(N_FEATURES, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"main": self.head(self.layers(x)[0])}


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(N_FEATURES, N_FEATURES), nn.Linear(N_FEATURES, 3)
        self.again = nn.Linear(N_FEATURES, N_FEATURES)
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"main": self.second(torch.relu(self.again(torch.relu(self.first(x)))))}


@pytest.mark.parametrize("kind", [Recurrent, Tied])
def test_weights_in_more_than_one_place_are_replayed(
    kind: Callable[[], nn.Module], settings: Settings
) -> None:
    one = compare(plain, settings, kind)
    assert one.failures == []
    assert one.n_replays == 2 * (N_STEPS - 3)


def test_a_part_that_is_called_alone_as_well_is_recorded_with_the_whole(
    settings: Settings,
) -> None:
    def loop(model: Any) -> list[float]:
        optimizer, losses = optimizer_of(model), []
        for step in range(2 * N_STEPS):
            optimizer.zero_grad()
            x, y = batch(step)
            result = model(x)["main"] if step % 2 else model.second(F.pad(x, (0, 2)))
            loss = F.cross_entropy(result, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = trained(loop, new_model())
    whole = Graphed(new_model(), settings)
    part = Graphed(whole.model.second, settings)  # type: ignore[arg-type]
    assert trained(loop, whole.model) == expected
    assert (whole.failures, part.failures) == ([], [])
    assert (whole.n_replays, part.n_replays) == (2 * (N_STEPS - 3),) * 2


class Cache:
    """As decoders give it back beside their logits."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Decoder(Net):
    def forward(self, x: Tensor, **options: Any) -> Any:
        loss = nn.CrossEntropyLoss()  # a module of the moment: nothing of the model is set
        result = super().forward(x)
        return {**result, "cache": Cache(result["main"]), "loss": loss(*[result["main"]] * 2)}


def test_what_only_python_can_make_is_refused_when_it_is_used(settings: Settings) -> None:
    one = compare(plain, settings, Decoder)
    assert one.failures == []
    assert one.n_replays == 2 * (N_STEPS - 3)
    cache = one.model(batch(0)[0])["cache"]
    with pytest.raises(RuntimeError, match="the Cache in the model's result is not replayed"):
        cache.tensor.sum()
    with pytest.raises(RuntimeError, match="not replayed"):
        len(cache)


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


# A backward that was not recorded -----------------------------------------------------------------


def after_a_later_call(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(2 * N_STEPS):
        first = loss_of(model, step)
        first.backward(retain_graph=True)
        loss = first
        if step % 5 == 4:
            loss = loss_of(model, 100 + step) + first
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def of_another_result(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(4 * N_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output["main"], y)
        if step >= N_STEPS:  # a second loss that is switched on later
            loss = loss + F.cross_entropy(output["other"], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("loop", [after_a_later_call, of_another_result])
def test_another_backward_than_before_calls_the_model_again(loop: Loop, settings: Settings) -> None:
    one = compare(loop, settings)
    assert one.failures == []
    assert one.n_replays > N_STEPS
    assert one.told.count(("done", "Net is replayed, forward and backward")) <= 2


def test_gradients_of_gradients_that_are_asked_for_later_are_right(settings: Settings) -> None:
    """But for rounding: what goes back by both ways is added up in another order."""

    def loop(model: nn.Module) -> list[float]:
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        weights = [*model.first.parameters(), *model.second.parameters()]  # type: ignore[union-attr]
        for step in range(2 * N_STEPS):
            loss = loss_of(model, step)
            if step >= N_STEPS:
                gradients = torch.autograd.grad(loss, weights, create_graph=True)
                loss = loss + sum(one.pow(2).sum() for one in gradients)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = trained(loop, new_model())
    one = Graphed(new_model(), settings)
    losses, sums = trained(loop, one.model)
    assert losses == pytest.approx(expected[0], rel=1e-4)
    assert sums == pytest.approx(expected[1], rel=1e-3, abs=1e-4)
    assert one.n_replays > N_STEPS


class Drops(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)


def test_a_model_that_draws_random_numbers_is_not_called_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU masks are drawn there, and no generator of the host has to do with it.
    monkeypatch.setattr(graphed, "_random_states", lambda torch: ())
    one = Graphed(new_model(Drops), settings)
    plain(one.model)
    x, y = batch(0)
    with pytest.raises(RuntimeError, match="it draws random numbers; run without this lever"):
        F.cross_entropy(one.model(x)["other"], y).backward()


def test_a_weight_with_a_hook_and_a_first_gradient_is_refused_and_never_wrong(
    settings: Settings,
) -> None:
    one = Graphed(new_model(), settings)
    with_a_hook_on_a_weight_without_gradients(one.model)
    x, y = batch(0)
    with pytest.raises(RuntimeError, match="a weight with a hook gets a gradient"):
        F.cross_entropy(one.model(x)["other"], y).backward()


# The model itself ---------------------------------------------------------------------------------


def test_what_a_recording_reads_is_kept_for_it(settings: Settings) -> None:
    """A graph reads memory that it does not own: a mask that its forward has made and let go."""

    class Masked(Net):
        mask: Tensor | None = None

        def forward(self, x: Tensor, **options: Any) -> Any:
            if self.mask is None or len(self.mask) != len(x):
                self.mask = torch.ones(len(x), 1)
            return {"main": super().forward(x)["main"] * self.mask}

    one = Graphed(new_model(Masked), settings)
    plain(one.model)
    mask = weakref.ref(one.model.mask)  # type: ignore[arg-type]
    with torch.no_grad():
        one.model(batch(0, 5)[0])
    gc.collect()
    assert one.graphed._recordings()
    assert mask() is not None


def test_a_model_that_is_saved_is_the_model_alone(settings: Settings) -> None:
    class WithAState(Net):
        def __getstate__(self) -> dict[str, Any]:
            return vars(self)

    one = Graphed(new_model(Net), settings)
    plain(one.model)
    one.model.__class__.__getstate__ = WithAState.__getstate__  # type: ignore[method-assign]
    try:
        again = pickle.loads(pickle.dumps(one.model))
    finally:
        del Net.__getstate__  # type: ignore[attr-defined]
    assert again._compiled_call_impl is None
    assert loss_of(again, 1).item() == loss_of(one.model, 1).item()


def test_a_model_that_is_let_go_is_freed(settings: Settings) -> None:
    one = Graphed(new_model(), settings)
    plain(one.model)
    assert one.n_replays
    model = weakref.ref(one.model)
    del one
    gc.collect()
    assert model() is None


# The lever ----------------------------------------------------------------------------------------


def test_on_a_cpu_it_says_why_not() -> None:
    events: list[dict[str, Any]] = []
    process = Process(torch, SimpleNamespace(around_call=None), lambda **e: events.append(e))
    process.apply(cuda_graphs.LEVER, "on")
    model = Net()
    process._meet_model(model, (), {})
    failed = [event["why"] for event in events if "failed" in event]
    assert failed == ["Net is not on one GPU alone"]
    assert model._compiled_call_impl is None
    process.undo()


@pytest.mark.parametrize(
    ("facts", "fields", "yes"),
    [
        ({}, {"waits_for_host": True}, True),
        ({}, {"waits_for_host": False}, False),
        ({"is_compiled": True}, {"waits_for_host": True}, False),
        ({"is_ddp": True}, {"waits_for_host": True}, False),
        ({}, {"waits_for_host": True, "device": "cpu"}, False),
    ],
)
def test_when_it_applies(facts: dict[str, Any], fields: dict[str, Any], yes: bool) -> None:
    model = Seen(None, {"kinds": {}, **facts})
    workload = a_workload(**{"device": "cuda", "models": (model,), **fields})
    assert cuda_graphs.applies(workload).yes is yes
