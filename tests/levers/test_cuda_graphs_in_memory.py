"""What replays give lies in memory as what calls give, and is theirs alone."""

from __future__ import annotations

import gc
import weakref
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
    new_model,
    optimizer_of,
    plain,
    trained,
    update,
)
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.levers.common.layouts import copier, layout_of
from hotlap.levers.common.recording import way_of
from hotlap.levers.common.unchanged import Settings

N_ROWS, N_WIDE = 40, 48


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(N_WIDE, 96), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class FirstPlace(nn.Module):
    """Gives a slice of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(N_WIDE, 96)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.view(N_ROWS, 3, N_WIDE)))[:, 0]


def rows(step: int, width: int = N_WIDE) -> Tensor:
    return torch.randn(N_ROWS, width, generator=torch.Generator().manual_seed(step))


def loop_of(inputs: Any, loss_of: Any) -> Loop:
    def loop(model: nn.Module) -> list[float]:
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(N_STEPS):
            loss = loss_of(model(inputs(step)), step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return loop


def against_itself(z: Tensor, step: int) -> Tensor:
    return F.cross_entropy(z @ z.t(), torch.arange(N_ROWS).roll(1))


def against_others(z: Tensor, step: int) -> Tensor:
    """The gradient comes transposed."""
    return F.cross_entropy(rows(step, 64) @ z.t(), torch.arange(N_ROWS))


def by_its_spread(z: Tensor, step: int) -> Tensor:
    return F.mse_loss(z, torch.full_like(z, 0.3)) + z.std()


def by_its_mean(z: Tensor, step: int) -> Tensor:
    """The gradient is one number that stands for all."""
    return z.mean()


CASES: dict[str, tuple[type[nn.Module], Any, Any]] = {
    "gradients of both sides": (Wide, rows, against_itself),
    "a transposed gradient": (Wide, rows, against_others),
    "one number for all": (Wide, rows, by_its_mean),
    "a slice goes in": (Wide, lambda step: rows(step, 64)[:, :N_WIDE], by_its_spread),
    "a slice comes out": (FirstPlace, lambda step: rows(step, 3 * N_WIDE), by_its_spread),
}


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_training_is_the_same_to_the_last_bit(name: str, settings: Settings) -> None:
    kind, inputs, loss_of = CASES[name]
    one = compare(loop_of(inputs, loss_of), settings, kind)
    assert one.failures == []
    assert one.n_replays == 2 * (N_STEPS - 3)


TENSORS = {
    "dense": torch.randn(4, 3),
    "transposed": torch.randn(4, 3).t(),
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "slice": torch.randn(4, 5, 6)[:, 0],
    "every other": torch.randn(8)[::2],
    "number": torch.tensor(1.0),
}


@pytest.mark.parametrize("name", TENSORS)
def test_copies_lie_as_the_original_does(name: str) -> None:
    tensor = TENSORS[name]
    copy = copier(torch, tensor)(tensor)
    assert torch.equal(copy, tensor)
    assert layout_of(copy) == layout_of(tensor)
    assert copy.data_ptr() != tensor.data_ptr()


def test_strides_that_lead_nowhere_make_no_other_way() -> None:
    one, other = torch.empty_strided((4, 1), (1, 1)), torch.empty_strided((4, 1), (1, 7))
    assert way_of({0: one}) == way_of({0: other})
    assert way_of({0: one}) != way_of({1: one})


class Named(Net):
    """Takes words that functions of ours have as well."""

    def forward(self, x: Tensor, *, kind: str = "", before: Any = None, **more: Any) -> Any:
        return super().forward(x)


def test_a_model_takes_any_names(settings: Settings) -> None:
    def loop(model: nn.Module) -> list[float]:
        optimizer, losses = optimizer_of(model), []
        for step in range(N_STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            names = {"kind": "a", "before": None, "weights": 1, "args": 2, "context": 3}
            loss = F.cross_entropy(model(x, **names)["main"], y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    one = compare(loop, settings, Named)
    assert one.failures == []
    assert one.n_replays == 2 * (N_STEPS - 3)


class Watched(Net):
    n_looking_on: list[int] = []  # noqa: RUF012
    """At each call: modes of torch's, under which it does not call what it has compiled."""

    def forward(self, x: Tensor, **more: Any) -> Any:
        Watched.n_looking_on.append(torch._C._len_torch_dispatch_stack())
        return super().forward(x)


def test_nobody_looks_on_while_that_is_recorded_which_is_replayed(settings: Settings) -> None:
    Watched.n_looking_on.clear()
    one = Graphed(new_model(Watched), settings)
    trained(plain, one.model)
    assert one.failures == []
    recorder_alone = 1
    # Calls, a first recording that is looked at, that which is replayed, and a call to compare.
    assert Watched.n_looking_on == [0, 0, 0, recorder_alone + 1, recorder_alone, 0]


class GivesAWeight(Net):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, **more: Any) -> Any:
        result = super().forward(x)
        return {"main": result["main"] * self.temperature, "temperature": self.temperature}


class GivesItsInput(Net):
    def forward(self, x: Tensor, **more: Any) -> Any:
        return {**super().forward(x), "input": x}


def clamping(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(N_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        result = model(x)
        loss = F.cross_entropy(result["main"], y)
        loss.backward()
        optimizer.step()
        result.get("temperature", result.get("input")).data.clamp_(max=0.99 - 0.01 * step)
        losses += [loss.item(), x.sum().item()]
    return losses


@pytest.mark.parametrize("kind", [GivesAWeight, GivesItsInput])
def test_a_result_that_is_more_than_a_result_is_handed_out_itself(
    kind: type[nn.Module], settings: Settings
) -> None:
    one = compare(clamping, settings, kind)
    (why,) = one.failures
    assert "an input, a weight or a buffer of its own" in why
    assert one.n_replays == 0


class ReturnsASavedWeight(torch.autograd.Function):
    """Half the square of a weight: its gradient is the weight itself, and no copy of it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(weight)
        return 0.5 * weight.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (weight,) = ctx.saved_tensors
        return weight.detach()


class Penalised(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, **more: Any) -> Any:
        main = super().forward(x)["main"] + self.extra.detach()
        return {"main": main, "penalty": ReturnsASavedWeight.apply(self.extra)}


def test_a_gradient_that_is_a_weight_does_the_weight_no_harm(settings: Settings) -> None:
    def loop(model: nn.Module) -> list[float]:
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(N_STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            result = model(x)
            loss = F.cross_entropy(result["main"], y) + result["penalty"]
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    one = compare(loop, settings, Penalised)
    assert one.failures == []


class Turning(nn.Module):
    """Of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(N_FEATURES, 3, dtype=torch.complex64))

    def forward(self, x: Tensor, **more: Any) -> Any:
        return {"main": (x.to(torch.complex64) @ self.turn).abs()}


def test_complex_gradients_are_copied_as_they_are(settings: Settings) -> None:
    one = compare(plain, settings, Turning)
    assert one.failures == []
    assert one.n_replays == 2 * (N_STEPS - 3)


def test_a_call_within_a_recording_of_the_scripts_own_runs_as_it_is(settings: Settings) -> None:
    expected = trained(plain, new_model())
    one = Graphed(new_model(), settings)
    one.recorder.is_capturing = lambda: True  # type: ignore[method-assign]
    assert trained(plain, one.model) == expected
    assert one.n_replays == 0


def test_modules_may_compare_themselves_as_they_like(settings: Settings) -> None:
    class OwnHash(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def __hash__(self) -> int:
            return hash(self.name)

    class NoHash(nn.Module):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, NoHash)

    class AllEqual(NoHash):
        def __hash__(self) -> int:
            return 1

    assert NoHash() == NoHash()  # though torch itself takes none for a part of another
    one = new_model()
    one.parts = nn.ModuleList([OwnHash("a"), AllEqual()])
    graphed = Graphed(one, settings)
    optimizer = optimizer_of(one)
    assert [update(one, optimizer, step) for step in range(N_STEPS)]
    assert graphed.failures == []
    before = settings.n_set
    one.parts[1].width = 3
    assert settings.n_set == before + 1


def test_a_recording_goes_with_its_model(settings: Settings) -> None:
    one = Graphed(new_model(), settings)
    trained(plain, one.model)
    model, recorder = weakref.ref(one.model), weakref.ref(one.recorder)
    del one
    gc.collect()
    assert model() is None
    assert recorder() is None
