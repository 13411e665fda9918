"""ResNets are torchvision's: the same names, the same outputs and gradients, drawn alike.

Needs torchvision, and no GPU: in double precision on the CPU equal means equal mathematics.
"""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from hotlap.models import resnet

NAMES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def pair(name: str, **options: bool) -> tuple[nn.Module, nn.Module]:
    """Our model and torchvision's, each drawn anew."""
    torch.manual_seed(0)
    return getattr(resnet, name)(**options), getattr(torchvision.models, name)(**options)


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_torchvisions_in_its_order(name: str) -> None:
    ours, theirs = pair(name)
    assert [(key, tensor.shape) for key, tensor in ours.state_dict().items()] == [
        (key, tensor.shape) for key, tensor in theirs.state_dict().items()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_of_torchvision_gives_its_outputs_and_gradients(name: str) -> None:
    ours, theirs = (model.double() for model in pair(name))
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64, dtype=torch.double)
    weights = torch.randn(2, 1000, dtype=torch.double)
    outputs, expected = ours(images), theirs(images)
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-9)
    (outputs * weights).sum().backward()
    (expected * weights).sum().backward()
    for (key, our_one), their_one in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        scale = their_one.grad.abs().max().item()
        torch.testing.assert_close(our_one.grad, their_one.grad, rtol=0, atol=1e-9 * scale, msg=key)
    # The statistics that both have gathered come into play now.
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("zero_init_residual", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_weights_are_drawn_as_torchvision_draws_them(name: str, zero_init_residual: bool) -> None:
    ours, theirs = pair(name, zero_init_residual=zero_init_residual)
    for (key, our_one), their_one in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if their_one.unique().numel() == 1:
            assert torch.equal(our_one, their_one), key
        else:
            assert our_one.mean().item() == pytest.approx(0, abs=0.2 * their_one.std().item()), key
            assert our_one.std().item() == pytest.approx(their_one.std().item(), rel=0.1), key
