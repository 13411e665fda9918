"""ResNet 18 to 152 (https://arxiv.org/abs/1512.03385), as torchvision has it.

Names of modules and parameters are torchvision's, so that its state dicts load. Bottlenecks are
V1.5: the stride is on the 3x3 convolution, not on the 1x1 before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hotlap.models.staged import StagedModel

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    EXPANSION: ClassVar[int] = 1

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(n_in, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(n_in, width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The one before the shortcut is added."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        """Images of `width` channels."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, which make it narrow, beside a shortcut."""

    EXPANSION: ClassVar[int] = 4

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = width * self.EXPANSION
        self.conv1 = _conv(n_in, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, n_out, 1)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(n_in, n_out, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The one before the shortcut is added."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        """Images of `width` times `EXPANSION` channels."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(x))


def _conv(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    return nn.Sequential(_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))


class ResNet(StagedModel):
    """Images [batch, channel, height, width] of any size to logits [batch, class]."""

    STEM = ("conv1", "bn1", "relu", "maxpool")
    BLOCKS = ("layer1", "layer2", "layer3", "layer4")
    HEAD = ("avgpool", "fc")

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        n_classes: int = 1000,
        n_channels: int = 3,
        small_stem: bool = False,
        zero_init_residual: bool = False,
    ) -> None:
        """`small_stem` keeps the resolution, for images of about 32 pixels.

        `zero_init_residual` starts with blocks that pass their input on
        (https://arxiv.org/abs/1706.02677).
        """
        super().__init__()
        self.zero_init_residual = zero_init_residual
        n_in = WIDTHS[0]
        self.conv1 = _conv(n_channels, n_in, 3) if small_stem else _conv(n_channels, n_in, 7, 2)
        self.bn1 = nn.BatchNorm2d(n_in)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, stride=2, padding=1)
        for name, width, depth in zip(self.BLOCKS, WIDTHS, depths, strict=True):
            stride = 1 if name == "layer1" else 2
            setattr(self, name, _layer(block, n_in, width, depth, stride))
            n_in = width * block.EXPANSION
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(n_in, n_classes)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Torchvision's: after the fan out for convolutions, torch's own for the last layer."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, (nn.BatchNorm2d, nn.Linear)):
                module.reset_parameters()
        if self.zero_init_residual:
            for block in self.blocks():
                nn.init.zeros_(block.last_norm.weight)

    def embed(self, inputs: Tensor) -> Tensor:
        """Images at a quarter of the resolution; at the full one with a small stem."""
        return self.maxpool(self.relu(self.bn1(self.conv1(inputs))))

    def predict(self, hidden: Tensor) -> Tensor:
        """Logits from the mean over the image."""
        return self.fc(self.avgpool(hidden).flatten(1))


def _layer(
    block: type[BasicBlock] | type[Bottleneck], n_in: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """Blocks of one resolution: the first one comes down to it."""
    n_out = width * block.EXPANSION
    first = block(n_in, width, stride)
    return nn.Sequential(first, *(block(n_out, width, 1) for _ in range(depth - 1)))


def resnet18(**options: Any) -> ResNet:
    """11.7 million parameters at 1000 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), **options)


def resnet34(**options: Any) -> ResNet:
    """21.8 million parameters at 1000 classes."""
    return ResNet(BasicBlock, (3, 4, 6, 3), **options)


def resnet50(**options: Any) -> ResNet:
    """25.6 million parameters at 1000 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **options)


def resnet101(**options: Any) -> ResNet:
    """44.5 million parameters at 1000 classes."""
    return ResNet(Bottleneck, (3, 4, 23, 3), **options)


def resnet152(**options: Any) -> ResNet:
    """60.2 million parameters at 1000 classes."""
    return ResNet(Bottleneck, (3, 8, 36, 3), **options)
