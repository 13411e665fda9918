"""What to train on and how it is loaded: the table `[data]` of a recipe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hotlap.errors import UsageError

Kind = Literal["folder", "idx", "tokens", "synthetic"]

MOST_WORKERS = 8
"""Chosen by default; more rarely help, and each holds batches in memory."""
IMAGENET_SIZE = 224
VAL_RATIO = 0.875
"""Of the image that the centre crop keeps: 224 of 256."""
MOST_MAGNITUDE = 30


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The data of a training; every field can be given in a recipe as `data.<field>`."""

    kind: Kind = "synthetic"
    """folder: images in a folder a class; idx: files of MNIST's kind; tokens: flat token files;
    synthetic: random samples that cost nothing to load."""
    path: str = ""
    """Folder of the data. Empty for idx: the usual places are looked at."""
    n_workers: int = -1
    """Processes that decode images (only `folder` needs any); -1: as many as this rank has CPUs, at
    most 8; 0: none, the loop's own process does it."""
    pin_memory: bool | None = None
    """Host memory that a GPU can read by itself; None: where there is a GPU."""
    persistent_workers: bool = True
    """Workers live on from epoch to epoch."""
    prefetch_factor: int = 2
    """Batches that each worker has ready."""
    drop_last: bool = True
    """Leave out the last batch of a training epoch if it is not full. If it is kept, it is filled
    up with samples whose targets are ignored. Validation never leaves anything out."""
    image_size: int = 0
    """Side of the square images in pixels; 0: 224, and for idx the size in the file."""
    val_resize: int = 0
    """Short side to which a validation image is resized before its centre is cut out; 0: the image
    size over 0.875, which is 256 for 224."""
    rectangular_validation: bool = False
    """Validate on images of their own aspect ratio (folder only): batches of like ratio share one
    rectangular shape, and less of an image is cut off."""
    mean: tuple[float, ...] = ()
    """Of each channel, for pixels in 0..1; empty: ImageNet's for 3 channels, 0.5 for others."""
    std: tuple[float, ...] = ()
    """As `mean`."""
    random_crop_scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of an image's area that a random crop keeps (folder only)."""
    crop_padding: int = 0
    """Training images are cut at random out of themselves with so many black pixels on each side
    (idx only); 0: off."""
    flip: bool = True
    """Mirror half of the training images; wrong for digits and letters."""
    randaugment_ops: int = 0
    """Operations of RandAugment on each image; 0: off."""
    randaugment_magnitude: int = 9
    """Their strength, 0 to 30."""
    random_erasing: float = 0.0
    """Probability that a rectangle of a training image is blanked."""
    mixup: float = 0.0
    """Alpha of mixup's Beta distribution; 0: off. With `cutmix`, either is drawn for a batch."""
    cutmix: float = 0.0
    """Alpha of CutMix's Beta distribution; 0: off."""
    context: int = 1024
    """Tokens that a model sees at once, at most."""
    tokens_per_batch: int = 0
    """Train on whole documents, in batches of at most so many tokens on each rank with their
    padding; 0: on windows of `context` tokens, the batch size counting windows."""
    n_samples: int = 50_000
    """Samples of a synthetic epoch."""


def check_settings(settings: DataSettings) -> None:
    """Raise a UsageError for values that cannot be used, or not together."""
    if settings.kind not in get_args(Kind):
        raise _wrong("kind", settings.kind, f"one of {', '.join(get_args(Kind))}")
    if settings.kind in ("folder", "tokens") and not settings.path:
        raise _wrong("path", "", f"the folder of the data, which kind '{settings.kind}' needs")
    _check_loading(settings)
    _check_images(settings)
    _check_mixing(settings)
    _check_tokens(settings)


def _check_loading(settings: DataSettings) -> None:
    if settings.n_workers < -1:
        raise _wrong("n_workers", settings.n_workers, "-1 (chosen), 0 or more")
    for name in ("prefetch_factor", "n_samples", "context"):
        if getattr(settings, name) < 1:
            raise _wrong(name, getattr(settings, name), "1 or more")


def _check_images(settings: DataSettings) -> None:
    for name in ("image_size", "val_resize", "randaugment_ops", "crop_padding"):
        if getattr(settings, name) < 0:
            raise _wrong(name, getattr(settings, name), "0 or more")
    if settings.val_resize and settings.val_resize < image_size_of(settings):
        raise _wrong("val_resize", settings.val_resize, "0, or at least data.image_size")
    if settings.rectangular_validation and settings.kind != "folder":
        raise _wrong("rectangular_validation", True, "false unless data.kind is 'folder'")
    if settings.crop_padding and settings.kind != "idx":
        raise _wrong("crop_padding", settings.crop_padding, "0 unless data.kind is 'idx'")
    low, high = settings.random_crop_scale
    if not 0 < low <= high <= 1:
        raise _wrong("random_crop_scale", [low, high], "two shares with 0 < low <= high <= 1")
    if len(settings.mean) != len(settings.std):
        raise _wrong("std", list(settings.std), "as long as data.mean")
    if any(one <= 0 for one in settings.std):
        raise _wrong("std", list(settings.std), "above 0 for each channel")


def _check_mixing(settings: DataSettings) -> None:
    if not 0 <= settings.randaugment_magnitude <= MOST_MAGNITUDE:
        raise _wrong("randaugment_magnitude", settings.randaugment_magnitude, "0 to 30")
    if not 0 <= settings.random_erasing <= 1:
        raise _wrong("random_erasing", settings.random_erasing, "a probability")
    for name in ("mixup", "cutmix"):
        if getattr(settings, name) < 0:
            raise _wrong(name, getattr(settings, name), "0 (off) or above")
        # Mixed targets are probabilities, and those have no value that a loss ignores.
        if getattr(settings, name) and not settings.drop_last:
            raise _wrong("drop_last", False, f"true with data.{name}")


def _check_tokens(settings: DataSettings) -> None:
    tokens = settings.tokens_per_batch
    if tokens and tokens < settings.context:
        raise _wrong("tokens_per_batch", tokens, f"0, or at least data.context {settings.context}")
    if tokens and settings.kind != "tokens":
        raise _wrong("tokens_per_batch", tokens, "0 unless data.kind is 'tokens'")


def _wrong(name: str, found: object, right: str) -> UsageError:
    return UsageError(f"data.{name} is {found!r}; it has to be {right}")


def image_size_of(settings: DataSettings) -> int:
    """Pixels of a side, where the files do not decide it."""
    return settings.image_size or IMAGENET_SIZE


def val_ratio_of(settings: DataSettings) -> float:
    """The share of a resized validation image that its centre crop keeps, whatever its size."""
    return image_size_of(settings) / settings.val_resize if settings.val_resize else VAL_RATIO


def chosen_workers(settings: DataSettings, environ: Mapping[str, str] = os.environ) -> int:
    """The number of worker processes of this rank."""
    if settings.n_workers >= 0:
        return settings.n_workers
    n_cpus = len(os.sched_getaffinity(0))
    # Ranks of one torchrun share the CPUs that it was given; srun gives each rank its own.
    n_sharing = int(environ["LOCAL_WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in environ else 1
    return max(1, min(MOST_WORKERS, n_cpus // n_sharing))
