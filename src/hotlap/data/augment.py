"""From a batch of uint8 pixels to what a model is trained on: on the device, whole batches at once.

The draws are a pure function of (seed, step, rank), so that a resumed run makes the same ones.
"""

from __future__ import annotations

import math
import random

import torch
from torch.nn.functional import one_hot

from hotlap.data.randaugment import WHITE, randaugment
from hotlap.data.sampling import Batch
from hotlap.data.seeds import mixed_seed, random_for
from hotlap.data.settings import DataSettings
from hotlap.errors import UsageError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ERASED_AREA = (0.02, 1 / 3)
"""Share of an image."""
ERASED_LOG_ASPECT = (math.log(0.3), -math.log(0.3))


class Augment:
    """Call it on every batch that a feed gives: `inputs, targets = augment(inputs, targets, step)`.

    Images come out as normalised float with the channels innermost. Targets are class numbers, or
    the probability of each class (n, n_classes) where the settings mix images; torch's cross
    entropy takes both, and smooths the labels of both alike. Tokens pass untouched.
    """

    def __init__(
        self,
        settings: DataSettings,
        n_classes: int,
        rank: int,
        seed: int,
        device: torch.device,
        is_training: bool,
    ) -> None:
        """In validation, images are normalised and that is all."""
        self._settings = settings
        self._n_classes = n_classes
        self._rank = rank
        self._seed = seed
        draws = (settings.randaugment_ops, settings.random_erasing, settings.mixup, settings.cutmix)
        self._is_random = is_training and any(draws)
        self._generator = torch.Generator(device=device)
        self._made_statistics: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor, step: int) -> Batch:
        """Augment a batch; `step` counts the training's batches from its start."""
        if inputs.dtype != torch.uint8:
            return inputs, targets
        if self._is_random:
            images, targets = self._augmented(inputs.float(), targets, self._draws_of(step))
        else:
            images = normalised(inputs, *self._statistics(inputs))
        return images.contiguous(memory_format=torch.channels_last), targets

    def _augmented(self, images: torch.Tensor, targets: torch.Tensor, draw: random.Random) -> Batch:
        # In this order as others do it: pixels, then their scale, then several images at once.
        settings = self._settings
        if settings.randaugment_ops:
            n_ops, magnitude = settings.randaugment_ops, settings.randaugment_magnitude
            images = randaugment(images, n_ops, magnitude, draw, self._generator)
        images = normalised(images, *self._statistics(images))
        if settings.random_erasing:
            images = erased(images, settings.random_erasing, self._generator)
        return self._mixed(images, targets, draw)

    def _statistics(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put on the device once: every copy from the host would be waited for."""
        if self._made_statistics is None:
            mean, std = statistics_of(self._settings, images.shape[1])
            scale, shift = scale_and_shift(mean, std)
            self._made_statistics = scale.to(images.device), shift.to(images.device)
        return self._made_statistics

    def _draws_of(self, step: int) -> random.Random:
        """Scalars from the host, so that nothing waits for the device; tensors from the device."""
        parts = self._seed, step, self._rank
        self._generator.manual_seed(mixed_seed("batch", *parts))
        return random_for("batch", *parts)

    def _mixed(self, images: torch.Tensor, targets: torch.Tensor, draw: random.Random) -> Batch:
        alphas = ((mixup, self._settings.mixup), (cutmix, self._settings.cutmix))
        chosen = [(mix, alpha) for mix, alpha in alphas if alpha]
        if not chosen:
            return images, targets
        mix, alpha = draw.choice(chosen)
        probabilities = one_hot(targets, self._n_classes).to(torch.float32)
        return mix(images, probabilities, draw.betavariate(alpha, alpha), draw)


def scale_and_shift(mean: torch.Tensor, std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What takes a mean and a deviation, given for pixels in 0..1, out of those in 0..255."""
    return 1 / (WHITE * std), -mean / std


def normalised(images: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Pixels in 0..255, bytes or floats, scaled and shifted: on a GPU they are read once."""
    return torch.addcmul(shift, images, scale)


def statistics_of(settings: DataSettings, n_channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of each channel (n_channels, 1, 1), for pixels in 0..1."""
    mean, std = settings.mean, settings.std
    if not mean and n_channels == len(IMAGENET_MEAN):
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    elif not mean:
        mean = std = (0.5,) * n_channels
    if len(mean) != n_channels:
        raise UsageError(f"data.mean has {len(mean)} values; the images have {n_channels} channels")
    return torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)


def mixup(images: torch.Tensor, targets: torch.Tensor, share: float, draw: random.Random) -> Batch:
    """Each image with its neighbour in the batch, which is a random one: `share` is its own."""
    return (
        torch.lerp(images.roll(1, 0), images, share),
        torch.lerp(targets.roll(1, 0), targets, share),
    )


def cutmix(images: torch.Tensor, targets: torch.Tensor, share: float, draw: random.Random) -> Batch:
    """A box of each image from its neighbour; the targets follow the area that was really cut."""
    height, width = images.shape[-2:]
    rows = _cut(height, math.sqrt(1 - share), draw)
    columns = _cut(width, math.sqrt(1 - share), draw)
    mixed = images.clone()
    mixed[..., rows, columns] = images.roll(1, 0)[..., rows, columns]
    cut_area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return mixed, torch.lerp(targets, targets.roll(1, 0), cut_area / (height * width))


def _cut(side: int, share: float, draw: random.Random) -> slice:
    """Pixels about a random centre; less of them where the centre is near the edge."""
    centre, half = draw.randrange(side), share * side / 2
    return slice(max(0, round(centre - half)), min(side, round(centre + half)))


def erased(images: torch.Tensor, probability: float, generator: torch.Generator) -> torch.Tensor:
    """Some images with a random rectangle set to 0, which is the mean colour once normalised."""
    n, _, height, width = images.shape
    draws = torch.rand((5, n, 1), generator=generator, device=images.device)
    area = _between(*ERASED_AREA, draws[0]) * height * width
    aspect = _between(*ERASED_LOG_ASPECT, draws[1]).exp()
    rows = _stretch(height, (area * aspect).sqrt(), draws[2])
    columns = _stretch(width, (area / aspect).sqrt(), draws[3])
    is_erased = (draws[4] < probability).view(n, 1, 1, 1)
    box = rows.view(n, 1, height, 1) & columns.view(n, 1, 1, width)
    return images.masked_fill(box & is_erased, 0.0)


def _between(low: float, high: float, draws: torch.Tensor) -> torch.Tensor:
    return low + (high - low) * draws


def _stretch(side: int, lengths: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """For each image, which pixels of a side (n, side) are in a stretch of it at a random place."""
    lengths = lengths.round().clamp(max=side)
    starts = (draws * (side - lengths + 1)).floor()
    places = torch.arange(side, device=draws.device)
    return (places >= starts) & (places < starts + lengths)
