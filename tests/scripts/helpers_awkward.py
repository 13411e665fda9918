"""The module that awkward.py imports from its own folder."""

import torch
from torch import Tensor, nn


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1))


def make_batch(size: int = 256) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 256)
    return x, x.mean(dim=1, keepdim=True)
