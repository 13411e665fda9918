"""One small model of each kind with an input that fits it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hotlap.models.gpt import GPT
from hotlap.models.resnet import BasicBlock, Bottleneck, ResNet
from hotlap.models.staged import StagedModel
from hotlap.models.vit import ViT

SMALL: dict[str, Callable[[], StagedModel]] = {
    "resnet of basic blocks": lambda: ResNet(BasicBlock, (2, 1, 1, 2), 10, small_stem=True),
    "resnet of bottlenecks": lambda: ResNet(Bottleneck, (1, 2, 1, 1), 10),
    "vit": lambda: ViT(4, 4, 32, n_classes=10, image_size=32),
    "gpt": lambda: GPT(4, 4, 32, vocab_size=50, context=16, tied=False, dropout=0.1),
    "tied gpt": lambda: GPT(3, 2, 32, vocab_size=50, context=16, dropout=0.1),
}


def example_input(model: nn.Module) -> Tensor:
    """Two samples: sequences for a GPT, images for the others."""
    if isinstance(model, GPT):
        return torch.randint(50, (2, 12))
    return torch.randn(2, 3, 32, 32)


def loss_of(outputs: Tensor) -> Tensor:
    """Depends on each output in another way."""
    return (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum()


def redraw(model: nn.Module) -> None:
    """Weights, biases and statistics that are all far from 0 and from one another."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("running_var", "num_batches_tracked")) or tensor.dim() == 1:
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
            else:
                tensor.normal_(std=0.3)
