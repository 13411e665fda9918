"""Where an image is cut: the geometry alone, without pixels.

The rules are those of torchvision's RandomResizedCrop, Resize and CenterCrop, so that published
accuracies can be compared.
"""

from __future__ import annotations

import math
import random

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are outside."""

N_ATTEMPTS = 10
LEAST_ASPECT, MOST_ASPECT = 3 / 4, 4 / 3


def random_crop_box(
    width: int, height: int, scale: tuple[float, float], draw: random.Random
) -> Box:
    """A box of random area and aspect ratio; a central one if ten attempts do not fit."""
    for _ in range(N_ATTEMPTS):
        area = width * height * draw.uniform(*scale)
        aspect = math.exp(draw.uniform(math.log(LEAST_ASPECT), math.log(MOST_ASPECT)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = draw.randint(0, height - h), draw.randint(0, width - w)
            return left, top, left + w, top + h
    return _largest_central_box(width, height)


def _largest_central_box(width: int, height: int) -> Box:
    """The largest central box whose aspect ratio a random crop could have."""
    w, h = width, height
    if width / height < LEAST_ASPECT:
        h = round(width / LEAST_ASPECT)
    elif width / height > MOST_ASPECT:
        w = round(height * MOST_ASPECT)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def covering_size(width: int, height: int, least_width: int, least_height: int) -> tuple[int, int]:
    """The smallest size of an image, its aspect ratio kept, that covers a rectangle."""
    if least_width * height >= least_height * width:
        return least_width, height * least_width // width
    return width * least_height // height, least_height


def central_box(width: int, height: int, crop_width: int, crop_height: int) -> Box:
    """A box of a given size in the middle."""
    left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
    return left, top, left + crop_width, top + crop_height
