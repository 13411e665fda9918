"""Which samples make which batch, on which rank, in an order that can be resumed anywhere.

The order of an epoch is a pure function of (seed, epoch). Global batch b is a slice of it, and rank
r of N takes every N-th sample of that slice from r on: N ranks see together exactly what one rank
with N times the batch sees.

In validation no sample is left out or counted twice. The last batch is filled up, so that all ranks
make equally many steps of one shape; what fills it up has its target set to IGNORED, which a loss
with `ignore_index=-100` passes over. So a loop must sum what it measures over the samples whose
target is not IGNORED, count those, and divide after both were summed over all ranks. A rank can get
a batch with nothing but IGNORED targets: the mean of a loss over it is nan, its sum is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

import torch

from hotlap.data.seeds import generator_for

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, the first dimension of both counting samples."""

IGNORED = -100
"""Target of what only fills up a batch: `ignore_index` of torch's cross entropy."""


@dataclass(frozen=True, slots=True)
class Request:
    """One batch, in full: whoever makes it needs to know nothing else."""

    epoch: int
    indices: tuple[int, ...]
    """Of the samples. Not a tensor: those travel to workers in shared memory, one file each."""
    n_real: int
    """Samples from the first on that count; the targets of the others are IGNORED."""
    height: int = 0
    """Of the images in pixels; 0 where there are none, or they are as stored."""
    width: int = 0


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What may change from epoch to epoch."""

    size: int
    """Samples of one rank's batch."""
    image_size: int = 0
    """Pixels; 0 where there are no images, or they are as stored."""


class Source(Protocol):
    """Makes batches."""

    n_classes: int
    """Classes that a target can have: of images, or tokens of the vocabulary."""
    is_slow: bool
    """A batch takes so long that worker processes should make it."""
    is_on_device: bool
    """Batches are made on the device, and need no copy."""

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def batch(self, request: Request) -> Batch:
        """The samples of a request; whoever gets them does not change them in place."""
        ...


class Order(Protocol):
    """Says which batches an epoch has on one rank."""

    def n_batches(self, shape: BatchShape) -> int:
        """The same in every epoch and on every rank."""
        ...

    def requests(self, epoch: int, start_batch: int, shape: BatchShape) -> Iterator[Request]:
        """The batches of an epoch from one of them on."""
        ...


@dataclass(frozen=True, slots=True)
class ResumableSampler:
    """The usual order: shuffled in training, as stored in validation."""

    n_samples: int
    rank: int
    world_size: int
    seed: int
    shuffle: bool
    drop_last: bool

    def n_batches(self, shape: BatchShape) -> int:
        """Global batches of an epoch."""
        global_size = shape.size * self.world_size
        whole, rest = divmod(self.n_samples, global_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> torch.Tensor | range:
        """All samples, as one rank alone would see them."""
        if not self.shuffle:
            return range(self.n_samples)
        return torch.randperm(self.n_samples, generator=generator_for("order", self.seed, epoch))

    def requests(self, epoch: int, start_batch: int, shape: BatchShape) -> Iterator[Request]:
        """This rank's part of each global batch."""
        order = self.order(epoch)
        global_size = shape.size * self.world_size
        for batch in range(start_batch, self.n_batches(shape)):
            first = batch * global_size
            mine = numbers(order[first + self.rank : first + global_size : self.world_size])
            indices = filled_up(mine, order, shape.size)
            yield Request(epoch, indices, len(mine), shape.image_size, shape.image_size)


def numbers(indices: torch.Tensor | range) -> tuple[int, ...]:
    """Indices as Python's own."""
    return tuple(indices if isinstance(indices, range) else indices.tolist())


def filled_up(indices: tuple[int, ...], others: torch.Tensor | range, size: int) -> tuple[int, ...]:
    """The indices, followed by as many others as make the size.

    Real samples fill it up rather than zeros: normalisation over a batch sees them all the same.
    """
    n_missing = size - len(indices)
    if not n_missing:
        return indices
    return (*indices, *islice(cycle(numbers(others[:n_missing])), n_missing))
