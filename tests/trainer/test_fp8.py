"""Precision fp8: the rounding of it, on the CPU, and what is said where it cannot be had."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.errors import UsageError
from hotlap.levers.common.fp8 import SMALLEST
from hotlap.models.gpt import GPT
from hotlap.models.resnet import resnet18
from hotlap.trainer.fp8 import Fp8Linear, check_device, multiply_in_fp8
from hotlap.trainer.recipe import resolve

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(autouse=True)
def product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own product of fp8; its definition, where oneDNN has none for this CPU."""
    one, scale = torch.zeros(16, 16).to(E4M3), torch.tensor(1.0)
    try:
        torch._scaled_mm(one, one.t(), scale_a=scale, scale_b=scale, out_dtype=torch.float32)
    except RuntimeError:
        monkeypatch.setattr(torch, "_scaled_mm", by_definition)


def by_definition(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype, **how: bool
) -> Tensor:
    return ((a.float() @ b.float()) * scale_a * scale_b).to(out_dtype)


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The values that are left of a tensor in fp8 with one scale for all of it."""
    scale = tensor.abs().max().clamp(min=SMALLEST) / torch.finfo(dtype).max
    return (tensor / scale).to(dtype).float() * scale


def test_products_are_those_of_the_rounded_factors() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    plain = copy.deepcopy(layer)
    layer.__class__ = Fp8Linear
    x = torch.randn(4, 8, 64, requires_grad=True)
    gradient = torch.randn(4, 8, 48)
    result = layer(x)
    result.backward(gradient)
    x8, weight8 = rounded(x.detach(), E4M3), rounded(plain.weight.detach(), E4M3)
    gradient8 = rounded(gradient, E5M2)
    torch.testing.assert_close(result, F.linear(x8, weight8, plain.bias), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad, gradient8 @ weight8, rtol=1e-4, atol=1e-4)
    flat, x_flat = gradient8.flatten(0, 1), x8.flatten(0, 1)
    torch.testing.assert_close(layer.weight.grad, flat.T @ x_flat, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.bias.grad, gradient.sum((0, 1)))


def test_rows_that_do_not_fit_are_multiplied_as_they_were() -> None:
    layer, x = nn.Linear(64, 48), torch.randn(5, 64)
    expected = layer(x)
    layer.__class__ = Fp8Linear
    assert torch.equal(layer(x), expected)


def test_all_but_the_logits_multiply_in_fp8_and_names_stay() -> None:
    gpt = GPT(2, 2, 32, vocab_size=64, context=16, tied=False)
    names = list(gpt.state_dict())
    assert multiply_in_fp8(gpt) == 8
    assert list(gpt.state_dict()) == names
    assert type(gpt.head) is nn.Linear
    assert type(gpt.layers[1].mlp.down) is Fp8Linear
    stranger = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    assert multiply_in_fp8(stranger) == 1
    assert type(stranger[2]) is nn.Linear


def test_a_gpt_learns_in_fp8_as_it_does_in_fp32() -> None:
    torch.manual_seed(0)
    plain = GPT(2, 2, 32, vocab_size=64, context=16)
    model = copy.deepcopy(plain)
    multiply_in_fp8(model)
    tokens = torch.randint(64, (8, 17))
    curves = [_curve(one, tokens) for one in (plain, model)]
    assert curves[0] != curves[1]
    assert curves[0][-1] < curves[0][0] - 1
    assert curves[1] == pytest.approx(curves[0], rel=0.02)


def _curve(model: nn.Module, tokens: Tensor, n_steps: int = 20) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(n_steps):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_where_it_cannot_be_had_one_sentence_says_so() -> None:
    with pytest.raises(UsageError, match=r"precision is fp8; it needs an NVIDIA GPU .* a CPU: use"):
        check_device(torch.device("cpu"))
    with pytest.raises(UsageError, match="precision is fp8, but ResNet has no linear layer before"):
        multiply_in_fp8(resnet18())
    with pytest.raises(UsageError, match=r"precision is fp8; with mesh\.tp"):
        resolve("gpt2-124m", ["precision=fp8", "tp=2"])
