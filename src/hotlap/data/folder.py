"""Images in a folder a class: `train/<class>/*.jpg` and `val/<class>/*.jpg`, as ImageNet is kept.

A batch is uint8 with the channels innermost in memory: a quarter of the bytes of float to move, and
the order in which an image is decoded. It becomes float on the device (augment.py).
"""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotlap.data.crops import central_box, covering_size, random_crop_box
from hotlap.data.sampling import Batch, Request
from hotlap.data.seeds import random_for
from hotlap.data.settings import DataSettings, val_ratio_of
from hotlap.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
N_HEADER_THREADS = 8
"""For reading the sizes of many images: the file system answers several at once."""


@dataclass(frozen=True, slots=True)
class FileList:
    """Paths of images and their classes, in flat memory.

    A list of a million strings would be copied into every worker little by little, because counting
    a reference writes to the string's page. Two tensors and one bytes object are shared.
    """

    root: str
    classes: tuple[str, ...]
    names: bytes
    """Paths below the root, one after another."""
    ends: torch.Tensor
    """Where each path ends in `names`."""
    targets: torch.Tensor

    def path(self, index: int) -> str:
        """The file of a sample."""
        first = int(self.ends[index - 1]) if index else 0
        return os.path.join(self.root, os.fsdecode(self.names[first : int(self.ends[index])]))


def list_images(folder: Path, is_training: bool) -> FileList:
    """Look through `train` or `val`; the classes are always those of `train`, sorted."""
    classes = _subfolders(folder / "train")
    root = folder / ("train" if is_training else "val")
    unknown = sorted(set(_subfolders(root)) - set(classes))
    if unknown:
        raise UsageError(f"{root} has a class '{unknown[0]}' that {folder / 'train'} does not have")
    names = bytearray()
    ends: list[int] = []
    targets: list[int] = []
    for target, name in enumerate(classes):
        for file in _images_below(root / name):
            names += os.fsencode(os.path.join(name, file))
            ends.append(len(names))
            targets.append(target)
    if not targets:
        raise UsageError(f"{root} has no images ({', '.join(SUFFIXES)}) in folders of classes")
    return FileList(
        str(root), tuple(classes), bytes(names), torch.tensor(ends), torch.tensor(targets)
    )


def _subfolders(folder: Path) -> list[str]:
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        raise UsageError(
            f"data.path: {folder} cannot be read ({error.strerror}); a folder with one folder of "
            f"images for each class is expected"
        ) from None
    if not found:
        raise UsageError(f"data.path: {folder} has no folders; one for each class is expected")
    return found


def _images_below(folder: Path) -> list[str]:
    """Sorted, so that a sample has the same index on every machine."""
    if not folder.is_dir():
        return []
    return sorted(e.name for e in os.scandir(folder) if e.name.lower().endswith(SUFFIXES))


def pillow_image() -> Any:
    """The module `PIL.Image`, or one sentence about where to get it."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise UsageError(
            "data.kind 'folder' needs Pillow to decode images, and it is not installed: "
            "pip install pillow"
        ) from None


class FolderSource:
    """Decodes images; a training image is cropped and mirrored at random."""

    is_slow = True
    is_on_device = False

    def __init__(
        self, files: FileList, settings: DataSettings, seed: int, is_training: bool
    ) -> None:
        """The seed decides the crops together with the epoch and the sample."""
        pillow_image()
        self.files = files
        self.n_classes = len(files.classes)
        self._settings = settings
        self._seed = seed
        self._is_training = is_training

    def __len__(self) -> int:
        """The number of images."""
        return len(self.files.targets)

    def batch(self, request: Request) -> Batch:
        """Images (n, 3, height, width) as uint8, and their classes."""
        shape = (len(request.indices), 3, request.height, request.width)
        images = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        for place, index in enumerate(request.indices):
            images[place] = as_tensor(self._image(index, request))
        return images, self.files.targets[list(request.indices)]

    def _image(self, index: int, request: Request) -> Any:
        image = open_rgb(self.files.path(index))
        if not self._is_training:
            return centre_of(image, request.width, request.height, val_ratio_of(self._settings))
        draw = random_for("sample", self._seed, request.epoch, index)
        return augmented(image, request.width, request.height, self._settings, draw)

    def aspects(self, indices: Sequence[int]) -> torch.Tensor:
        """Width over height of some images, from the heads of their files."""
        paths = [self.files.path(index) for index in indices]
        with ThreadPoolExecutor(N_HEADER_THREADS) as threads:
            return torch.tensor(list(threads.map(_aspect, paths)))


def _aspect(path: str) -> float:
    with _opened(path) as image:
        return float(image.width / image.height)


def open_rgb(path: str) -> Any:
    """Decode a file."""
    with _opened(path) as image:
        return image.convert("RGB")


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """A file whose head was read; what is wrong with it is said in one sentence."""
    try:
        with pillow_image().open(path) as image:
            yield image
    # Pillow raises SyntaxError for a broken PNG.
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"{path} cannot be read as an image: {error}") from None


def augmented(
    image: Any, width: int, height: int, settings: DataSettings, draw: random.Random
) -> Any:
    """A random crop of a training image, resized, mirrored half of the time."""
    pillow = pillow_image()
    box = random_crop_box(image.width, image.height, settings.random_crop_scale, draw)
    image = image.crop(box).resize((width, height), pillow.Resampling.BILINEAR)
    is_mirrored = settings.flip and draw.random() < 0.5
    return image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if is_mirrored else image


def centre_of(image: Any, width: int, height: int, ratio: float) -> Any:
    """The centre of a validation image, resized so that it is a given ratio of what is left."""
    least_width, least_height = round(width / ratio), round(height / ratio)
    size = covering_size(image.width, image.height, least_width, least_height)
    image = image.resize(size, pillow_image().Resampling.BILINEAR)
    return image.crop(central_box(image.width, image.height, width, height))


def as_tensor(image: Any) -> torch.Tensor:
    """An RGB image as uint8 (3, height, width)."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1)
