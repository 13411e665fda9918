"""Documents of many lengths in batches of a constant count of tokens.

Documents of like length stand together, so that little of a batch is padding, and a batch of short
ones has more of them. The first batch of an epoch has the longest document: the memory that it
needs is enough for all that follow, and the allocator never has to look for more. (A run that is
resumed in the middle of an epoch starts where it was: order goes before memory.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hotlap.data.sampling import BatchShape, Request
from hotlap.data.seeds import generator_for


@dataclass(frozen=True, slots=True)
class DocumentOrder:
    """Groups of like length: each is a global batch, of which rank r takes every N-th document."""

    lengths: torch.Tensor
    """Tokens of each document; none is longer than `tokens_per_batch`."""
    tokens_per_batch: int
    """Of one rank, its padding counted."""
    rank: int
    world_size: int
    seed: int
    shuffle: bool

    def n_batches(self, shape: BatchShape) -> int:
        """Groups; what decides their size is the tokens, not the batch size."""
        return len(self._group_sizes())

    def requests(self, epoch: int, start_batch: int, shape: BatchShape) -> Iterator[Request]:
        """This rank's documents of each group."""
        groups = self._groups(epoch)
        for group in groups[start_batch:]:
            mine = group[self.rank :: self.world_size]
            # A rank that is left with nothing makes the step all the same, on ignored targets.
            chosen = mine if len(mine) else group[:1]
            yield Request(epoch, tuple(chosen.tolist()), len(mine))

    def _groups(self, epoch: int) -> list[torch.Tensor]:
        """The longest first, the others in any order."""
        generator = generator_for("order", self.seed, epoch)
        n = len(self.lengths)
        order = torch.randperm(n, generator=generator) if self.shuffle else torch.arange(n)
        by_length = torch.argsort(self.lengths[order], descending=True, stable=True)
        groups = list(order[by_length].split(self._group_sizes()))
        if not self.shuffle:
            return groups
        others = torch.randperm(len(groups) - 1, generator=generator) + 1
        return [groups[0], *(groups[i] for i in others.tolist())]

    def _group_sizes(self) -> list[int]:
        """Documents of each group, the longest ones first: the same in every epoch."""
        lengths = self.lengths.sort(descending=True).values
        sizes: list[int] = []
        first = 0
        while first < len(lengths):
            n_each = self.tokens_per_batch // int(lengths[first])
            sizes.append(min(n_each * self.world_size, len(lengths) - first))
            first += sizes[-1]
        return sizes
