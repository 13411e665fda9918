"""A model whose calls are replayed trains as the model itself does, to the last bit.

There is no GPU here: what stands in for a CUDA graph does the operations of the first time again,
in their memory (tape.py). CUDA graphs themselves are in tests/gpu.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graphed_models import (
    N_FEATURES,
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
    with_a_hook_on_a_weight_without_gradients,
    with_both_results,
)
from lever_runs import a_workload
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.levers import cuda_graphs
from hotlap.levers.common.process import Process
from hotlap.levers.common.unchanged import Settings
from hotlap.levers.common.workload import Seen


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


@pytest.mark.parametrize("loop", REPLAYED, ids=lambda loop: loop.__name__)
def test_a_replayed_training_is_the_same_to_the_last_bit(loop: Loop, settings: Settings) -> None:
    one = compare(loop, settings)
    assert one.failures == []
    assert one.n_replays >= 2 * (N_STEPS - 3)
    assert ("done", "Net is replayed, forward and backward") in one.told


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
