"""Validation on images of their own aspect ratio.

The images are sorted by aspect ratio, and those of a batch share one rectangle of about their mean
ratio. Less is cut off than by a square, so that accuracy is higher at the same cost, or the same at
a smaller size. Each rank sorts its own share, so that it has to look only at its own files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hotlap.data.sampling import BatchShape, Request, filled_up, numbers

SIDE_STEP = 32
"""Pixels by which long sides differ: the stride of most networks, and few shapes to compile for."""
MOST_ASPECT = 2.0
"""Longer images are cut: a single panorama must not decide what a batch costs."""


@dataclass(frozen=True, slots=True)
class AspectOrder:
    """Every sample of the validation set once, over all ranks."""

    aspects: torch.Tensor
    """Width over height of this rank's samples, which are rank, rank + world_size, ..."""
    n_samples: int
    rank: int
    world_size: int

    def n_batches(self, shape: BatchShape) -> int:
        """Of the rank that has most samples."""
        most_samples = -(-self.n_samples // self.world_size)
        return -(-most_samples // shape.size)

    def requests(self, epoch: int, start_batch: int, shape: BatchShape) -> Iterator[Request]:
        """Batches of rising aspect ratio, the last one filled up."""
        everything = torch.arange(self.n_samples)
        by_aspect = torch.argsort(self.aspects, stable=True)
        order = everything[self.rank :: self.world_size][by_aspect]
        aspects = self.aspects[by_aspect]
        for batch in range(start_batch, self.n_batches(shape)):
            chosen = slice(batch * shape.size, (batch + 1) * shape.size)
            mine = order[chosen]
            aspect = float(aspects[chosen].mean()) if len(mine) else 1.0
            height, width = rectangle(aspect, shape.image_size)
            indices = filled_up(numbers(mine), order if len(order) else everything, shape.size)
            yield Request(epoch, indices, len(mine), height, width)


def rectangle(aspect: float, short_side: int) -> tuple[int, int]:
    """Height and width of about an aspect ratio (width over height)."""
    stretch = min(max(aspect, 1 / aspect), MOST_ASPECT)
    long_side = short_side + int(short_side * (stretch - 1)) // SIDE_STEP * SIDE_STEP
    return (short_side, long_side) if aspect >= 1 else (long_side, short_side)
