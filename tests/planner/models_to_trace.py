"""Models for the tests of tracing: of several kinds, and some that cannot be traced."""

from __future__ import annotations

from torch import Tensor, nn


def conv_net(width: int = 16) -> nn.Module:
    """A stem, two kinds of blocks, one grouped, and a head."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.Sequential(_Residual(width, 1), _Residual(width, 4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


class _Residual(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.norm(self.conv(x)))


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.weight.sum().item() > 0:
            return x
        return -x


def looks_at_values() -> nn.Module:
    """Cannot be traced: what it does depends on values."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), _Branches())


def frozen() -> nn.Module:
    """Nothing to train."""
    return nn.Linear(4, 4).requires_grad_(False)


def dies() -> nn.Module:
    """Takes its process with it."""
    import os

    os._exit(7)


def raises() -> nn.Module:
    """Cannot be made."""
    raise RuntimeError("no such\nthing")
