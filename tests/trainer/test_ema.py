"""The averaged weights: their values, their turn, and that a model gets its own back untouched."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from two_ranks import LIMIT_S, on_two_ranks

from hotlap.errors import UsageError
from hotlap.trainer.ema import Ema, EmaSettings


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(n)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def shake(model: nn.Module) -> None:
    """A training step, as far as the average is concerned."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    model(torch.randn(8, *model[0].weight.shape[1:]).to(model[0].weight.dtype))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in model.state_dict().items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], one) for name, one in expected.items())


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_is_that_of_the_formula(warmup: bool) -> None:
    model = network().double()
    ema = Ema(model, EmaSettings(decay=0.6, warmup=warmup))
    expected = model[0].weight.detach().clone()
    decays = []
    for n in range(12):
        shake(model)
        ema.update(model)
        decays.append(min(0.6, (1 + n) / (10 + n)) if warmup else 0.6)
        expected = decays[-1] * expected + (1 - decays[-1]) * model[0].weight.detach()
    torch.testing.assert_close(ema.averages["0.weight"], expected, rtol=1e-12, atol=1e-12)
    assert (decays[0], decays[-1]) == ((0.1, pytest.approx(12 / 21)) if warmup else (0.6, 0.6))


def test_before_the_first_step_the_average_is_the_model() -> None:
    model = network()
    before = state(model)
    ema = Ema(model)
    shake(model)
    with ema.swapped(model):
        assert_same(state(model), before)


def test_buffers_are_copied_and_not_averaged() -> None:
    model = network()
    ema = Ema(model)
    shake(model)
    ema.update(model)
    latest = {name: one.clone() for name, one in model.named_buffers()}
    shake(model)
    with ema.swapped(model):
        assert_same(dict(model.named_buffers()), latest)


def test_weights_are_added_every_nth_step_only() -> None:
    model = network()
    ema = Ema(model, EmaSettings(decay=0.5, every=3))
    seen = []
    for _ in range(7):
        shake(model)
        ema.update(model)
        seen.append(ema.averages["0.weight"].clone())
    changed = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert changed == [False, True, False, False, True, False]
    assert (ema.n_steps, ema.n_averaged) == (7, 2)


def test_inside_the_model_has_the_average_and_after_its_own_bits() -> None:
    model = network()
    ema = Ema(model, EmaSettings(decay=0.5))
    shake(model)
    ema.update(model)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")  # equal to nothing: only its bits can be compared
    addresses = [one.data_ptr() for one in model.parameters()]
    own = {name: one.clone() for name, one in model.state_dict().items()}
    with ema.swapped(model):
        assert torch.equal(model[0].weight, ema.averages["0.weight"])
        assert [one.data_ptr() for one in model.parameters()] == addresses
        model(torch.randn(8, 4))  # in training mode, which moves the statistics
    for name, one in model.state_dict().items():
        bits = torch.int32 if one.is_floating_point() else one.dtype
        assert torch.equal(one.view(bits), own[name].view(bits))


def test_an_exception_passes_and_the_model_has_its_own_weights_again() -> None:
    model = network()
    ema = Ema(model)
    shake(model)
    own = state(model)

    def validate() -> None:
        with ema.swapped(model):
            assert not torch.equal(model[0].weight, own["0.weight"])
            raise RuntimeError("validation broke")

    with pytest.raises(RuntimeError, match="validation broke"):
        validate()
    assert_same(state(model), own)


def test_gradients_and_what_is_trained_are_left_alone() -> None:
    model = network()
    ema = Ema(model)
    model[2].weight.requires_grad_(False)
    model(torch.randn(8, 4)).sum().backward()
    gradient = model[0].weight.grad.clone()
    ema.update(model)
    with ema.swapped(model):
        pass
    assert torch.equal(model[0].weight.grad, gradient)
    assert [one.requires_grad for one in model.parameters()] == [True] * 4 + [False, True]
    assert not any(one.requires_grad for one in ema.averages.values())


def test_small_steps_are_not_lost_in_half_precision() -> None:
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.constant_(model.weight, 1.0)
    ema = Ema(model, EmaSettings(decay=0.999, warmup=False))
    nn.init.constant_(model.weight, 2.0)
    for _ in range(1000):
        ema.update(model)
    with ema.swapped(model):
        assert model.weight.dtype == torch.bfloat16
        assert model.weight[0, 0].item() == pytest.approx(2 - 0.999**1000, rel=0.01)


def test_tied_weights_are_averaged_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    ema = Ema(model, EmaSettings(decay=0.5, warmup=False))
    with torch.no_grad():
        model[0].weight.add_(1.0)
    ema.update(model)
    with ema.swapped(model):
        assert torch.equal(model[1].weight, ema.averages["0.weight"])
    assert list(ema.averages) == ["0.weight", "0.bias", "1.bias"]


def test_a_saved_average_goes_on_bit_for_bit() -> None:
    model = network()
    settings = EmaSettings(decay=0.9, every=2)
    ema = Ema(model, settings)
    for _ in range(3):
        shake(model)
        ema.update(model)
    file = io.BytesIO()
    torch.save(ema.state_dict(), file)
    file.seek(0)
    resumed = Ema(network(), settings)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        shake(model)
        ema.update(model)
        resumed.update(model)
    assert_same(resumed.averages, ema.averages)
    assert_same(resumed.buffers, ema.buffers)
    assert (resumed.n_steps, resumed.n_averaged) == (6, 3)


def test_the_average_of_another_model_is_refused() -> None:
    ema = Ema(network())
    saved = Ema(nn.Sequential(nn.Linear(4, 6))).state_dict()
    with pytest.raises(UsageError, match=r"averages differ in 1\.bias"):
        ema.load_state_dict(saved)


@pytest.mark.parametrize(
    ("values", "key"),
    [({"decay": 1.0}, r"ema\.decay"), ({"decay": -0.1}, r"ema\.decay"), ({"every": 0}, "every")],
)
def test_an_impossible_setting_of_the_average_is_named(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        EmaSettings(**values)


def test_an_update_asks_the_device_for_no_value() -> None:
    # On the meta device there are no values: whoever reads one fails.
    model = network().to("meta")
    ema = Ema(model)
    ema.update(model)
    with ema.swapped(model):
        assert model[0].weight.is_meta
    assert ema.n_averaged == 1


# Sharded over two processes ---------------------------------------------------------------------


def sharded_outputs(rank: int) -> dict[str, float]:
    """Distances from one process: averages, outputs with them, and outputs after."""
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    # The root keeps what it gathered after a forward that no backward follows.
    sharded = copy.deepcopy(alone)
    fully_shard(sharded[0])
    fully_shard(sharded)
    x = torch.randn(8, 5, dtype=torch.float64)
    averages, found = [], {}
    outputs: list[dict[str, Tensor]] = []
    for model in (alone, sharded):
        ema = Ema(model, EmaSettings(decay=0.7))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            ema.update(model)
        seen = {}
        with torch.no_grad():
            seen["before"] = model(x)
            with ema.swapped(model):
                seen["swapped"] = model(x)
            seen["after"] = model(x)
        outputs.append(seen)
        averages.append(ema.averages)
    for name in outputs[0]:
        found[name] = (outputs[0][name] - outputs[1][name]).abs().max().item()
    found["averages"] = max(
        (averages[1][name].full_tensor() - one).abs().max().item()
        for name, one in averages[0].items()
    )
    found["effect"] = (outputs[0]["swapped"] - outputs[0]["after"]).abs().max().item()
    return found


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_sharded_model_validates_with_the_average_and_trains_on_with_its_own(
    tmp_path: Path,
) -> None:
    found = on_two_ranks(sharded_outputs, tmp_path)
    assert found.pop("effect") > 1e-3
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-10)
