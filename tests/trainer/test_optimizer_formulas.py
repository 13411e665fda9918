"""The optimizers written here against the formulas of their papers, written out naively."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hotlap.errors import UsageError
from hotlap.trainer.optimizers.lamb import Lamb
from hotlap.trainer.optimizers.lars import Lars
from hotlap.trainer.optimizers.lion import Lion
from hotlap.trainer.optimizers.muon import Muon, newton_schulz

OURS = (Lars, Lamb, Lion, Muon)
State = dict[str, Any]


def lars_of_the_paper(w: Tensor, g: Tensor, s: State, lr: float, decay: float) -> Tensor:
    rate = 0.02 * w.norm() / (g.norm() + decay * w.norm()) if w.norm() * g.norm() > 0 else 1.0
    s["v"] = 0.9 * s.get("v", 0) + lr * rate * (g + decay * w)
    return w - s["v"]


def adam_of_the_paper(g: Tensor, s: State) -> Tensor:
    s["t"] = s.get("t", 0) + 1
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.98 * s.get("v", 0) + 0.02 * g**2
    return (s["m"] / (1 - 0.9 ** s["t"])) / ((s["v"] / (1 - 0.98 ** s["t"])).sqrt() + 1e-6)


def lamb_of_the_paper(w: Tensor, g: Tensor, s: State, lr: float, decay: float) -> Tensor:
    u = adam_of_the_paper(g, s) + decay * w
    ratio = w.norm() / u.norm() if w.norm() * u.norm() > 0 else 1.0
    return w - lr * ratio * u


def lion_of_the_paper(w: Tensor, g: Tensor, s: State, lr: float, decay: float) -> Tensor:
    m = s.get("m", torch.zeros_like(g))
    c = 0.9 * m + (1 - 0.9) * g
    s["m"] = 0.98 * m + (1 - 0.98) * g
    return w - lr * (c.sign() + decay * w)


def muon_of_the_paper(w: Tensor, g: Tensor, s: State, lr: float, decay: float) -> Tensor:
    s["m"] = 0.9 * s.get("m", 0) + g
    o = g + 0.9 * s["m"]
    o = o.reshape(o.shape[0], -1)
    x = o / o.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return w - lr * (0.2 * math.sqrt(max(o.shape)) * x.reshape(w.shape) + decay * w)


def adamw_of_the_paper(w: Tensor, g: Tensor, s: State, lr: float, decay: float) -> Tensor:
    return w - lr * (adam_of_the_paper(g, s) + decay * w)


PAPERS: dict[Any, tuple[Any, dict[str, Any]]] = {
    Lars: (lars_of_the_paper, {"momentum": 0.9, "trust_coefficient": 0.02}),
    Lamb: (lamb_of_the_paper, {"betas": (0.9, 0.98), "eps": 1e-6}),
    Lion: (lion_of_the_paper, {"betas": (0.9, 0.98)}),
    Muon: (muon_of_the_paper, {"momentum": 0.9, "nesterov": True}),
}


def assert_follows(
    optimizer: torch.optim.Optimizer, rule: Any, params: list[nn.Parameter], decay: float
) -> None:
    """Ten steps of random gradients with a rate that changes, beside a rule for one parameter."""
    expected = [one.detach().clone() for one in params]
    states: list[State] = [{} for _ in params]
    for step in range(10):
        lr = 0.1 / (step + 1)
        optimizer.param_groups[0]["lr"] = lr
        for i, param in enumerate(params):
            param.grad = torch.randn_like(param)
            expected[i] = rule(expected[i], param.grad, states[i], lr, decay)
        optimizer.step()
    for param, one in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), one, rtol=1e-10, atol=1e-10)


def mixed(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_ten_steps_are_those_of_the_paper(kind: Any, decay: float) -> None:
    rule, values = PAPERS[kind]
    params = mixed((7, 4), (4, 7), (5, 3, 2, 2), (7, 4), (1, 6), (6, 1))
    if kind is not Muon:
        params += mixed((5,), (1,), ())
    assert_follows(kind(params, lr=0.1, weight_decay=decay, **values), rule, params, decay)


def test_what_muon_leaves_over_takes_the_steps_of_adamw() -> None:
    params = mixed((7, 4), (5,), ())
    optimizer = Muon(params, lr=0.1, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1, hidden=False)
    assert_follows(optimizer, adamw_of_the_paper, params, 0.1)


def test_muon_without_nesterov_takes_the_momentum_itself() -> None:
    (param,) = mixed((5, 4))
    optimizer = Muon([param], lr=1.0, momentum=0.5, nesterov=False)
    start = param.detach().clone()
    first, second = torch.randn(2, 5, 4, dtype=torch.float64)
    for param.grad in (first, second):
        before = param.detach().clone()
        optimizer.step()
    expected = newton_schulz((0.5 * first + second)[None])[0] * 0.2 * math.sqrt(5)
    torch.testing.assert_close(before - param.detach(), expected)
    assert not torch.equal(start, before)


def test_newton_schulz_brings_all_singular_values_close_to_one() -> None:
    for shape in ((3, 60, 20), (3, 20, 60)):
        result = newton_schulz(torch.randn(shape, dtype=torch.float64))
        values = torch.linalg.svdvals(result)
        assert result.shape == shape
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_an_update_of_muon_is_as_large_as_one_of_adamw() -> None:
    for shape in ((64, 64), (128, 32), (32, 16, 3, 3)):
        (param,) = mixed(shape)
        before = param.detach().clone()
        param.grad = torch.randn_like(param)
        Muon([param], lr=1.0).step()
        assert (param - before).square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


def test_matrices_of_one_shape_are_the_same_together_and_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = []
    for size in (2**26, 40, 1):
        monkeypatch.setattr("hotlap.trainer.optimizers.muon.BATCH_ELEMENTS", size)
        torch.manual_seed(5)
        params = mixed(*[(5, 4)] * 5, (4, 5))
        for param in params:
            param.grad = torch.randn_like(param)
        Muon(params, lr=0.1).step()
        results.append(torch.cat([one.detach().flatten() for one in params]))
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_groups_that_do_not_adapt_take_the_plain_rate(kind: Any) -> None:
    (param,) = mixed((4, 4))
    before = param.detach().clone()
    param.grad = torch.full_like(param, 3.0)
    kind([param], lr=0.1, adapt=False).step()
    change = 0.3 if kind is Lars else 0.1
    torch.testing.assert_close(param.detach(), before - change, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", OURS)
def test_parameters_of_several_dtypes_go_into_one_group(kind: Any) -> None:
    params = [nn.Parameter(torch.randn(4, 4, dtype=d)) for d in (torch.float32, torch.float64)]
    for param in params:
        param.grad = torch.randn_like(param)
    before = [param.detach().clone() for param in params]
    kind(params, lr=0.1).step()
    assert all(not torch.equal(a, b) for a, b in zip(params, before, strict=True))


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_norms_of_half_precision_do_not_overflow(kind: Any) -> None:
    # The norm of the weights is 76,800, more than 16 bits can say.
    param = nn.Parameter(torch.full((64, 64), 1200.0, dtype=torch.float16))
    param.grad = torch.full_like(param, 100.0)
    lr, change = (10.0, 12.0) if kind is Lars else (0.1, 120.0)
    kind([param], lr=lr).step()
    torch.testing.assert_close(param.detach(), torch.full_like(param, 1200.0 - change))


@pytest.mark.parametrize("kind", OURS)
def test_sparse_gradients_and_complex_parameters_are_refused_in_a_step(kind: Any) -> None:
    param = nn.Parameter(torch.zeros(4, 4))
    param.grad = torch.eye(4).to_sparse()
    with pytest.raises(UsageError, match="is sparse; it has to be dense"):
        kind([param], lr=0.1).step()
    param = nn.Parameter(torch.zeros(4, 4, dtype=torch.complex64))
    param.grad = torch.zeros_like(param)
    with pytest.raises(UsageError, match="is complex"):
        kind([param], lr=0.1).step()
