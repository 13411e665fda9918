"""Backwards that come in another way, or at another time, than those that were recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

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
    with_a_hook_on_a_weight_without_gradients,
    with_both_results,
)
from torch import nn
from torch.nn import functional as F

from hotlap.levers.common.graphed import MOST_RECOMPUTED
from hotlap.levers.common.unchanged import Settings


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


@pytest.mark.usefixtures("draws_on_the_device")
@pytest.mark.parametrize("loop", [after_a_later_call, of_another_result])
def test_a_model_that_draws_random_numbers_is_called_again_with_the_same(
    loop: Loop, settings: Settings
) -> None:
    one = compare(loop, settings, Drops)
    assert one.failures == []
    assert one.n_replays > N_STEPS


@pytest.mark.usefixtures("draws_on_the_device")
def test_replays_that_draw_other_numbers_than_a_call_are_not_used(settings: Settings) -> None:
    """What they give cannot be told from something wrong."""
    one = Graphed(new_model(Drops), settings)

    def record(function: Callable[[], None], record: Any = one.recorder.record) -> Any:
        replay = record(function)

        def draws_first() -> None:
            torch.rand(1)
            replay()

        return draws_first

    one.recorder.record = record  # type: ignore[method-assign]
    plain(one.model)
    assert one.failures == ["it cannot be recorded: its results are others when it is replayed"]
    assert not any(how == "done" for how, _ in one.told)


def test_replays_that_give_something_else_are_not_used(settings: Settings) -> None:
    """As those of kernels that are launched where nobody records: they run once."""
    expected = trained(plain, new_model())
    one = Graphed(new_model(), settings)

    def record(function: Callable[[], None], record: Any = one.recorder.record) -> Any:
        record(function)
        return lambda: None

    one.recorder.record = record  # type: ignore[method-assign]
    assert trained(plain, one.model) == expected
    assert one.failures == ["it cannot be recorded: its results are others when it is replayed"]


def test_backwards_that_give_something_else_are_not_used(settings: Settings) -> None:
    expected = trained(plain, new_model())
    one, replays = Graphed(new_model(), settings), []

    def record(function: Callable[[], None], record: Any = one.recorder.record) -> Any:
        replays.append(record(function))
        return replays[-1] if len(replays) < 3 else lambda: None

    one.recorder.record = record  # type: ignore[method-assign]
    assert trained(plain, one.model) == expected
    assert one.failures == ["it cannot be recorded: its gradients are others when it is replayed"]


def test_inputs_that_were_changed_since_are_refused_and_never_wrong(settings: Settings) -> None:
    one = Graphed(new_model(), settings)
    plain(one.model)
    x, y = batch(0)
    loss = F.cross_entropy(one.model(x)["other"], y)
    x.zero_()
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        loss.backward()


def test_inputs_are_let_go_of_while_losses_are_kept(settings: Settings) -> None:
    one = Graphed(new_model(), settings)
    optimizer, losses, inputs = optimizer_of(one.model), [], []
    for step in range(N_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        losses.append(F.cross_entropy(one.model(x)["main"], y))
        losses[-1].backward()
        optimizer.step()
        inputs.append(weakref.ref(x))
        del x
    assert one.n_replays > 0
    assert [one() for one in inputs] == [None] * N_STEPS


def test_a_weight_with_a_hook_and_a_first_gradient_is_refused_and_never_wrong(
    settings: Settings,
) -> None:
    one = Graphed(new_model(), settings)
    with_a_hook_on_a_weight_without_gradients(one.model)
    x, y = batch(0)
    with pytest.raises(RuntimeError, match="it leads to a weight with a hook"):
        F.cross_entropy(one.model(x)["other"], y).backward()
