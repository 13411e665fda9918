"""Random samples, made once on the device and taken in turn: a training that never waits for data.

What a step takes on them is the best that any loading can reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hotlap.data.sampling import Batch, Request
from hotlap.data.seeds import generator_for
from hotlap.data.settings import DataSettings

N_DISTINCT = 1024
"""Samples that are kept: more than a batch of most trainings, and small in memory."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """What a model of images takes."""

    n_channels: int = 3
    n_classes: int = 1000


@dataclass(frozen=True, slots=True)
class TokenInput:
    """What a language model takes."""

    vocabulary: int


ModelInput = ImageInput | TokenInput


class SyntheticSource:
    """Images (n, channels, height, width) as uint8, or tokens (n, context), on the device."""

    is_slow = False
    is_on_device = True

    def __init__(
        self,
        model_input: ModelInput,
        settings: DataSettings,
        seed: int,
        rank: int,
        device: torch.device,
    ) -> None:
        """The seed and the rank decide the samples."""
        self._input = model_input
        self._n_samples = settings.n_samples
        self._n_distinct = min(N_DISTINCT, settings.n_samples)
        self._context = settings.context
        self._seeds = (seed, rank)
        self._device = device
        self._made: tuple[tuple[int, int], Batch] | None = None
        self._views: dict[tuple[int, int], Batch] = {}
        """Batches that were taken: parts of what was made, by their first sample and their size."""
        if isinstance(model_input, ImageInput):
            self.n_classes = model_input.n_classes
        else:
            self.n_classes = model_input.vocabulary

    def __len__(self) -> int:
        """Samples of an epoch; most come up several times."""
        return self._n_samples

    def batch(self, request: Request) -> Batch:
        """The samples that stand at the indices, counted round and round."""
        inputs, targets = self._samples(request.height, request.width)
        first = request.indices[0] % self._n_distinct
        place = first, len(request.indices)
        if place not in self._views:
            end = sum(place)
            if end > self._n_distinct:
                places = torch.arange(first, end, device=self._device) % self._n_distinct
                return inputs[places], targets[places]
            self._views[place] = inputs[first:end], targets[first:end]
        return self._views[place]

    def _samples(self, height: int, width: int) -> Batch:
        """Made again only when the size of the images changes."""
        if self._made is None or self._made[0] != (height, width):
            self._made = (height, width), self._draw(height, width)
            self._views.clear()
        return self._made[1]

    def _draw(self, height: int, width: int) -> Batch:
        generator = generator_for("synthetic", *self._seeds, device=self._device)
        how = {"generator": generator, "device": self._device}
        n = self._n_distinct
        if isinstance(self._input, TokenInput):
            tokens = torch.randint(self._input.vocabulary, (n, self._context + 1), **how)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        shape = (n, self._input.n_channels, height, width)
        images = torch.randint(256, shape, dtype=torch.uint8, **how)
        labels = torch.randint(self._input.n_classes, (n,), **how)
        return images.contiguous(memory_format=torch.channels_last), labels
