"""RandAugment on the device, on whole batches of float images with pixels in 0..255.

The operations and their strengths are those of torchvision's RandAugment, without equalize. To keep
launches few, a batch is cut into groups and the operations are drawn for a group, not for an image;
which way each goes (brighter or darker, left or right) is drawn for every image.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch.nn.functional import affine_grid, conv2d, grid_sample

from hotlap.data.settings import MOST_MAGNITUDE

N_GROUPS = 8
WHITE = 255.0
MOST_BITS, LEAST_BITS = 8, 4
MOST_ENHANCEMENT = 0.9
MOST_SHEAR = 0.3
MOST_DEGREES = 30.0
MOST_TRANSLATION = 150 / 331
"""Of a side: 150 pixels at the 331 of the paper."""
LUMA = (0.299, 0.587, 0.114)

Operation = Callable[[torch.Tensor, float, torch.Tensor], torch.Tensor]
"""Images, strength in 0..1, and a sign (n,) for each image."""


def _per_image(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)


def _enhanced(
    images: torch.Tensor, plain: torch.Tensor, strength: float, signs: torch.Tensor
) -> torch.Tensor:
    """Away from a plain version of the image, or towards it."""
    factor = _per_image(1 + signs * MOST_ENHANCEMENT * strength)
    return torch.lerp(plain, images, factor).clamp(0, WHITE)


def brightness(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """From or to black."""
    return _enhanced(images, torch.zeros_like(images), strength, signs)


def grey(images: torch.Tensor) -> torch.Tensor:
    """Luminance (n, 1, height, width); the channel itself where there are not three."""
    if images.shape[1] != len(LUMA):
        return images.mean(1, keepdim=True)
    return sum(weight * images[:, i : i + 1] for i, weight in enumerate(LUMA))


def contrast(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """From or to the mean luminance of the image."""
    plain = grey(images).mean((1, 2, 3), keepdim=True).expand_as(images)
    return _enhanced(images, plain, strength, signs)


def colour(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """From or to grey."""
    return _enhanced(images, grey(images).expand_as(images), strength, signs)


def sharpness(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """From or to a smoothed image; the outermost pixels stay."""
    n_channels = images.shape[1]
    kernel = images.new_ones(3, 3)
    kernel[1, 1] = 5.0
    kernel = (kernel / kernel.sum()).expand(n_channels, 1, 3, 3)
    plain = images.clone()
    plain[..., 1:-1, 1:-1] = conv2d(images, kernel, groups=n_channels)
    return _enhanced(images, plain, strength, signs)


def posterize(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Keep the 8 to 4 highest bits of each pixel."""
    n_bits = MOST_BITS - round((MOST_BITS - LEAST_BITS) * strength)
    step = 2.0 ** (MOST_BITS - n_bits)
    return torch.floor(images / step) * step


def solarize(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Invert the pixels above a threshold; there are none at strength 0."""
    return torch.where(images > WHITE * (1 - strength), WHITE - images, images)


def autocontrast(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to 0..255; a channel of one value stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    stretched = (images - low) * (WHITE / (high - low).clamp(min=1e-3))
    return torch.where(high > low, stretched, images)


def _warped(images: torch.Tensor, rows: list[list[torch.Tensor | float]]) -> torch.Tensor:
    """Sampled through an affine map of each image's coordinates in -1..1; black outside."""
    # Filled on the device: a number that is copied there would be waited for.
    values = [images.new_zeros(len(images)) + one for row in rows for one in row]
    maps = torch.stack(values, dim=1).view(-1, 2, 3)
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def shear_x(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Rows move sideways, the further from the middle the more."""
    height, width = images.shape[-2:]
    return _warped(images, [[1, signs * MOST_SHEAR * strength * height / width, 0], [0, 1, 0]])


def shear_y(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Columns move up or down, the further from the middle the more."""
    height, width = images.shape[-2:]
    return _warped(images, [[1, 0, 0], [signs * MOST_SHEAR * strength * width / height, 1, 0]])


def translate_x(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Left or right."""
    # A side is 2 long in these coordinates.
    return _warped(images, [[1, 0, signs * 2 * MOST_TRANSLATION * strength], [0, 1, 0]])


def translate_y(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Up or down."""
    return _warped(images, [[1, 0, 0], [0, 1, signs * 2 * MOST_TRANSLATION * strength]])


def rotate(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """About the middle."""
    height, width = images.shape[-2:]
    angle = math.radians(MOST_DEGREES * strength)
    sine = signs * math.sin(angle)
    rows = [
        [math.cos(angle), sine * height / width, 0],
        [-sine * width / height, math.cos(angle), 0],
    ]
    return _warped(images, rows)


def identity(images: torch.Tensor, strength: float, signs: torch.Tensor) -> torch.Tensor:
    """Some images stay as they are."""
    return images


OPERATIONS: tuple[Operation, ...] = (
    identity,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    rotate,
    brightness,
    colour,
    contrast,
    sharpness,
    posterize,
    solarize,
    autocontrast,
)


def randaugment(
    images: torch.Tensor,
    n_ops: int,
    magnitude: int,
    draw: random.Random,
    generator: torch.Generator,
) -> torch.Tensor:
    """Each group of the batch through operations of its own."""
    strength = magnitude / MOST_MAGNITUDE
    groups = []
    for group in images.chunk(N_GROUPS):
        for operation in draw.choices(OPERATIONS, k=n_ops):
            signs = torch.randint(2, (len(group),), generator=generator, device=images.device)
            group = operation(group, strength, signs * 2 - 1)
        groups.append(group)
    return torch.cat(groups)
