"""Vision transformers (https://arxiv.org/abs/2010.11929): pre-norm, class token, learned positions.

Sizes are those of the paper and, for tiny and small, of DeiT (https://arxiv.org/abs/2012.12877).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.errors import UsageError
from hotlap.models import transformer
from hotlap.models.staged import StagedModel

WEIGHT_STD = 0.02
NORM_EPS = 1e-6


class ViT(StagedModel):
    """Images [batch, channel, size, size] to logits [batch, class]."""

    TENSOR_PARALLEL = transformer.TENSOR_PARALLEL
    STEM = ("patches", "class_token", "positions")
    BLOCKS = ("layers",)
    HEAD = ("norm", "head")

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        width: int,
        n_classes: int = 1000,
        n_channels: int = 3,
        image_size: int = 224,
        patch_size: int = 16,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise UsageError(
                f"image_size is {image_size}; a ViT takes multiples of its patches, {patch_size}"
            )
        self.image_size = image_size
        self.n_heads = n_heads
        n_patches = (image_size // patch_size) ** 2
        self.patches = nn.Conv2d(n_channels, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + n_patches, width))
        self.layers = nn.Sequential(
            *(
                transformer.Block(width, n_heads, is_causal=False, gelu="none", norm_eps=NORM_EPS)
                for _ in range(n_layers)
            )
        )
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.head = nn.Linear(width, n_classes)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Small truncated normal weights; those of the patches keep the variance of the input."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=WEIGHT_STD)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        if self.is_first:
            fan_in = math.prod(self.patches.weight.shape[1:])
            nn.init.trunc_normal_(self.patches.weight, std=math.sqrt(1 / fan_in))
            nn.init.zeros_(self.patches.bias)
            nn.init.trunc_normal_(self.class_token, std=WEIGHT_STD)
            nn.init.trunc_normal_(self.positions, std=WEIGHT_STD)

    def embed(self, inputs: Tensor) -> Tensor:
        """The class token, then one token a patch, each with its position."""
        height, width = inputs.shape[-2:]
        if (height, width) != (self.image_size, self.image_size):
            raise UsageError(
                f"images of {height} x {width} pixels came into a ViT whose image_size is "
                f"{self.image_size}: its positions fit no other"
            )
        patches = self.patches(inputs).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(inputs), -1, -1)
        return torch.cat((class_token, patches), dim=1) + self.positions

    def predict(self, hidden: Tensor) -> Tensor:
        """Logits from the class token."""
        return self.head(self.norm(hidden[:, 0]))


def vit_tiny(**options: Any) -> ViT:
    """5.7 million parameters at 224 pixels and 1000 classes."""
    return ViT(n_layers=12, n_heads=3, width=192, **options)


def vit_small(**options: Any) -> ViT:
    """22.1 million parameters at 224 pixels and 1000 classes."""
    return ViT(n_layers=12, n_heads=6, width=384, **options)


def vit_base(**options: Any) -> ViT:
    """86.6 million parameters at 224 pixels and 1000 classes."""
    return ViT(n_layers=12, n_heads=12, width=768, **options)


def vit_large(**options: Any) -> ViT:
    """304.3 million parameters at 224 pixels and 1000 classes."""
    return ViT(n_layers=24, n_heads=16, width=1024, **options)
