"""One contract that every optimizer keeps, what Muon takes, and the settings."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from optimizing import LR, every_optimizer, settings_of
from torch import Tensor, nn

from hotlap.errors import UsageError
from hotlap.trainer.optimizers.build import build_optimizer
from hotlap.trainer.optimizers.hidden import hidden_matrices
from hotlap.trainer.optimizers.settings import OptimizerSettings


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(n)


class Small(nn.Module):
    """Mixed shapes: matrices of equal and of different sizes, a kernel, a norm, biases."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 6, 3, padding=1)
        self.conv = nn.Conv1d(6, 5, 3, padding=1, bias=False)
        self.norm = nn.LayerNorm(20)
        self.wide = nn.Linear(20, 9)
        self.first = nn.Linear(9, 9)
        self.second = nn.Linear(9, 9)
        self.head = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.stem(x)).flatten(1)
        y = self.wide(self.norm(y)).tanh()
        return self.head(self.second(self.first(y).tanh()).tanh())


def small(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model and its loss on a fixed batch."""
    torch.manual_seed(3)
    model = Small().to(dtype)
    x, y = torch.randn(32, 2, 4, dtype=dtype), torch.randint(3, (32,))
    return model, lambda: nn.functional.cross_entropy(model(x), y)


def train(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], n_steps: int) -> float:
    for _ in range(n_steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    return value.item()


def train_to_rest(
    optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], n_steps: int, lr: float
) -> None:
    """At a rate that falls to nothing: steps in units of a weight's norm never settle otherwise."""
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / n_steps)
        train(optimizer, loss, 1)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@every_optimizer
def test_a_quadratic_is_minimised(name: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    goals = [torch.randn_like(one) for one in model.parameters()]

    def loss() -> Tensor:
        pairs = zip(model.parameters(), goals, strict=True)
        return sum(((one - goal) ** 2).sum() for one, goal in pairs)

    first = loss().item()
    train_to_rest(build_optimizer(model, settings_of(name)), loss, 300, 4 * LR[name])
    assert loss().item() < 0.01 * first


@every_optimizer
def test_a_small_network_learns_its_batch(name: Any) -> None:
    model, loss = small()
    first = loss().item()
    train_to_rest(build_optimizer(model, settings_of(name)), loss, 200, LR[name])
    assert loss().item() < 0.3 * first


@every_optimizer
def test_a_saved_optimizer_resumes_bit_for_bit(name: Any) -> None:
    model, loss = small()
    optimizer = build_optimizer(model, settings_of(name, weight_decay=0.01))
    train(optimizer, loss, 3)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    train(optimizer, loss, 3)

    other, other_loss = small()
    resumed = build_optimizer(other, settings_of(name, lr=9.0, weight_decay=0.5))
    file.seek(0)
    of_model, of_optimizer = torch.load(file, weights_only=True)
    other.load_state_dict(of_model)
    resumed.load_state_dict(of_optimizer)
    train(resumed, other_loss, 3)
    assert_same(weights(other), weights(model))


@every_optimizer
@pytest.mark.parametrize("decay_norms", [False, True])
def test_weights_decay_only_where_asked(name: Any, decay_norms: bool) -> None:
    model, _ = small()
    nn.init.normal_(model.norm.bias)
    before = weights(model)
    chosen = settings_of(name, lr=0.1, weight_decay=0.5, decay_norms=decay_norms)
    optimizer = build_optimizer(model, chosen)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for after, old in zip(model.parameters(), before, strict=True):
        if after.ndim >= 2 or decay_norms:
            # All but LAMB, which scales what decays as well, shrink by lr * weight_decay.
            factor = 0.9 if name == "lamb" and after.ndim >= 2 else 0.95
            torch.testing.assert_close(after.detach(), factor * old)
        else:
            assert torch.equal(after, old)


@every_optimizer
def test_zero_gradients_move_nothing_and_leave_numbers(name: Any) -> None:
    model, loss = small()
    nn.init.zeros_(model.first.weight)
    before = weights(model)
    optimizer = build_optimizer(model, settings_of(name))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert_same(weights(model), before)
    assert math.isfinite(train(optimizer, loss, 2))


@every_optimizer
def test_parameters_without_gradient_are_left_alone_until_they_have_one(name: Any) -> None:
    model, loss = small()
    optimizer = build_optimizer(model, settings_of(name, weight_decay=0.1))
    before = weights(model)
    optimizer.step()
    assert_same(weights(model), before)
    loss().backward()
    model.first.weight.grad = None
    kept = model.first.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.first.weight, kept)
    train(optimizer, loss, 1)
    assert not torch.equal(model.first.weight, kept)
    assert all(one.isfinite().all() for one in model.parameters())


@every_optimizer
def test_a_rate_of_zero_moves_nothing(name: Any) -> None:
    model, loss = small()
    before = weights(model)
    train(build_optimizer(model, settings_of(name, lr=0.0, weight_decay=0.1)), loss, 3)
    assert_same(weights(model), before)


@every_optimizer
def test_a_closure_is_called_with_gradients_on_and_its_loss_returned(name: Any) -> None:
    model, loss = small()
    other, other_loss = small()
    optimizer = build_optimizer(model, settings_of(name))

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    expected = loss().item()
    with torch.no_grad():
        assert optimizer.step(closure).item() == expected
    train(build_optimizer(other, settings_of(name)), other_loss, 1)
    assert_same(weights(model), weights(other))


@every_optimizer
@pytest.mark.parametrize("overflow_at", [0, 2])
def test_a_step_that_a_gradient_scaler_skips_leaves_no_trace(name: Any, overflow_at: int) -> None:
    results = []
    for skips in (False, True):
        model, loss = small()
        optimizer = build_optimizer(model, settings_of(name))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        for step in range(4):
            if skips and step == overflow_at:
                scaler.scale(loss() * math.inf).backward()
                scaler.step(optimizer)
                scaler.update(4.0)
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(weights(model))
    assert_same(results[1], results[0])


@every_optimizer
def test_groups_hold_each_trained_parameter_once(name: Any) -> None:
    model, _ = small()
    model.second.weight.requires_grad_(False)
    groups = build_optimizer(model, settings_of(name, weight_decay=0.1)).param_groups
    held = [id(parameter) for group in groups for parameter in group["params"]]
    trained = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(held) == sorted(trained)
    assert len(groups) == (3 if name == "muon" else 2)
    assert [group["weight_decay"] for group in groups][-2:] == [0.1, 0.0]
    assert {one.ndim for one in groups[-1]["params"]} == {1}


@every_optimizer
def test_a_step_asks_the_device_for_no_value(name: Any) -> None:
    # On the meta device there are no values: whoever reads one fails.
    model = Small().to("meta")
    optimizer = build_optimizer(model, settings_of(name, weight_decay=0.1))
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    tensors = [one for state in optimizer.state.values() for one in state.values()]
    assert {one.device.type for one in tensors if one.ndim} == {"meta"}


@every_optimizer
def test_the_state_has_the_dtype_and_the_strides_of_the_parameter(name: Any) -> None:
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)))
    model = model.to(torch.float64).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(model, settings_of(name))
    train(optimizer, lambda: model(torch.ones(2, 4, 5, 5, dtype=torch.float64)).sum(), 1)
    kernel = model[1].weight
    tensors = [one for key, one in optimizer.state[kernel].items() if key != "step"]
    assert tensors
    assert all(one.dtype == torch.float64 for one in tensors)
    assert all(one.stride() == kernel.stride() for one in tensors)


@every_optimizer
def test_sparse_embeddings_and_complex_parameters_are_refused_by_name(name: Any) -> None:
    sparse = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(UsageError, match="embedding '0' of the model has sparse=True"):
        build_optimizer(sparse, settings_of(name))
    with pytest.raises(UsageError, match=r"parameter '0\.weight' of the model is complex"):
        build_optimizer(nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64)), settings_of(name))


@every_optimizer
def test_a_model_with_nothing_to_train_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="no parameter that is trained"):
        build_optimizer(nn.Linear(3, 3).requires_grad_(False), settings_of(name))


# Which parameters Muon takes --------------------------------------------------------------------


def names_of_hidden(model: nn.Module) -> list[str]:
    hidden = {id(one) for one in hidden_matrices(model)}
    return [name for name, one in model.named_parameters() if id(one) in hidden]


def test_hidden_matrices_lie_between_the_first_and_the_last_layer() -> None:
    assert names_of_hidden(Small()) == [
        "conv.weight",
        "wide.weight",
        "first.weight",
        "second.weight",
    ]


class Text(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 8)
        self.positions = nn.Parameter(torch.zeros(1, 5, 8))
        self.attention = nn.MultiheadAttention(8, 2)
        self.mlp = nn.Linear(8, 8)
        self.types = nn.Embedding(3, 8)
        self.head = nn.Linear(8, 10, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_heads_and_lone_parameters_are_not_hidden(tied: bool) -> None:
    hidden = ["attention.in_proj_weight", "attention.out_proj.weight", "mlp.weight"]
    assert names_of_hidden(Text(tied)) == hidden


class Blocks(nn.Module):
    """A stage of a pipeline, or a model whose head is its embedding: no head of its own."""

    def __init__(self, has_embedding: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 8) if has_embedding else None
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


@pytest.mark.parametrize("has_embedding", [False, True])
def test_layers_of_named_blocks_are_hidden_also_at_the_ends(has_embedding: bool) -> None:
    model = Blocks(has_embedding)
    assert names_of_hidden(model) == ["layers.0.weight", "layers.1.weight"]
    wrapped = nn.ModuleDict({"module": model})
    assert len(names_of_hidden(wrapped)) == 2


def test_frozen_matrices_are_not_hidden() -> None:
    model = Small()
    model.first.weight.requires_grad_(False)
    assert "first.weight" not in names_of_hidden(model)


def test_muon_refuses_a_model_without_hidden_matrices() -> None:
    with pytest.raises(UsageError, match="no hidden matrix"):
        build_optimizer(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), settings_of("muon"))


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"name": "adam"}, r"optimizer\.name is 'adam'; there are sgd"),
        ({"lr": -1.0}, r"optimizer\.lr"),
        ({"lr": float("nan")}, r"optimizer\.lr"),
        ({"lr": float("inf")}, r"optimizer\.lr"),
        ({"weight_decay": -0.1}, r"optimizer\.weight_decay"),
        ({"eps": 0.0}, r"optimizer\.eps"),
        ({"trust_coefficient": 0.0}, r"optimizer\.trust_coefficient"),
        ({"momentum": 1.0}, r"optimizer\.momentum"),
        ({"betas": (0.9, 1.0)}, r"optimizer\.betas is 0\.9, 1\.0"),
        ({"betas": (0.9,)}, r"optimizer\.betas"),
        ({"name": "adamw", "nesterov": True}, r"optimizer\.nesterov"),
        ({"nesterov": True, "momentum": 0.0}, r"optimizer\.momentum"),
        ({"name": "lion", "fused": True}, r"optimizer\.fused"),
    ],
)
def test_an_impossible_setting_of_the_optimizer_is_named(values: Any, key: str) -> None:
    with pytest.raises(UsageError, match=key):
        OptimizerSettings(**values)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_fused_is_taken_where_torch_has_it(name: Any) -> None:
    model = Small()

    def is_fused(model: nn.Module, fused: bool | None) -> bool:
        return build_optimizer(model, settings_of(name, fused=fused)).defaults["fused"]

    assert is_fused(model, None)
    assert is_fused(model, True)
    assert not is_fused(model, False)
    assert not is_fused(model.to("meta"), None)
    with pytest.raises(UsageError, match="no fused optimizer on the device 'meta'"):
        is_fused(model, True)


def test_settings_reach_the_optimizer() -> None:
    chosen = settings_of("muon", lr=0.3, momentum=0.8, nesterov=False, betas=(0.5, 0.6), eps=1e-3)
    (group, *_) = build_optimizer(Small(), chosen).param_groups
    found = {key: group[key] for key in ("lr", "momentum", "nesterov", "betas", "eps", "hidden")}
    assert found == {
        "lr": 0.3,
        "momentum": 0.8,
        "nesterov": False,
        "betas": (0.5, 0.6),
        "eps": 1e-3,
        "hidden": True,
    }
    chosen = settings_of("sgd", momentum=0.8, nesterov=True)
    group = build_optimizer(Small(), chosen).param_groups[0]
    assert (group["momentum"], group["nesterov"]) == (0.8, True)
    group = build_optimizer(Small(), settings_of("lars", trust_coefficient=0.5)).param_groups[0]
    assert group["trust_coefficient"] == 0.5
