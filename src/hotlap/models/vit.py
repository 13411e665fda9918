"""Vision transformers (https://arxiv.org/abs/2010.11929): pre-norm, class token, learned positions.

Sizes are those of the paper and, for tiny and small, of DeiT (https://arxiv.org/abs/2012.12877).

The positions are those of one size of images. For another size, or for rectangles, they are
interpolated (bicubic), so that a position keeps its place relative to the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.errors import UsageError
from hotlap.models import transformer
from hotlap.models.staged import StagedModel

WEIGHT_STD = 0.02
NORM_EPS = 1e-6


class ViT(StagedModel):
    """Images [batch, channel, height, width] to logits [batch, class]."""

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
        self.n_heads = n_heads
        self.patch_size = patch_size
        self.n_patches_a_side = image_size // patch_size
        n_patches = self.n_patches_a_side**2
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
        patches = self.patches(inputs)
        positions = self._positions_for(inputs)
        class_token = self.class_token.expand(len(inputs), -1, -1)
        return torch.cat((class_token, patches.flatten(2).transpose(1, 2)), dim=1) + positions

    def _positions_for(self, images: Tensor) -> Tensor:
        """The class token's, then one for each patch, row by row."""
        check_size(images.shape[-2:], self.patch_size)
        rows, columns = (pixels // self.patch_size for pixels in images.shape[-2:])
        side = self.n_patches_a_side
        if (rows, columns) == (side, side):
            return self.positions
        of_class, of_patches = self.positions.split((1, side * side), dim=1)
        grid = of_patches.unflatten(1, (side, side))
        down = interpolation(side, rows, grid)
        across = interpolation(side, columns, grid)
        # Two small products, not `interpolate` itself: its backward is neither fast nor repeatable.
        with torch.autocast(grid.device.type, enabled=False):
            resized = torch.einsum("rs,ct,bstw->brcw", down, across, grid)
        return torch.cat((of_class, resized.flatten(1, 2)), dim=1)

    def predict(self, hidden: Tensor) -> Tensor:
        """Logits from the class token."""
        return self.head(self.norm(hidden[:, 0]))


def check_size(sides: Sequence[int], patch_size: int, where: str = "") -> None:
    """Refuse images that patches do not fill."""
    if any(pixels % patch_size for pixels in sides):
        raise UsageError(
            f"{where}images of {' x '.join(map(str, sides))} pixels are for no ViT of patches of "
            f"{patch_size}: it takes multiples of that"
        )


def interpolation(n_from: int, n_to: int, like: Tensor) -> Tensor:
    """The matrix [n_to, n_from] of a bicubic interpolation along one side."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    each = torch.eye(n_from, dtype=dtype, device=like.device)[None, None]
    spread = F.interpolate(each, size=(n_to, n_from), mode="bicubic", antialias=True)
    return spread[0, 0].to(like.dtype)


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
