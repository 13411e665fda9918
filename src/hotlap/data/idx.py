"""The idx files of MNIST and Fashion-MNIST, plain or gzipped: the whole set in memory.

Debian's package dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist. The set is
small, so it is on the device from the start, and a batch is a choice of its rows.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import torch
from torch.nn.functional import interpolate, pad

from hotlap.data.sampling import Batch, Request
from hotlap.data.seeds import generator_for
from hotlap.errors import UsageError

USUAL_PLACES = (
    "/usr/share/datasets/fashion-mnist",
    "/usr/share/datasets/mnist",
    "data/fashion-mnist",
    "data/FashionMNIST/raw",
    "data/mnist",
    "data/MNIST/raw",
)
"""Where `path = ""` looks: Debian's packages, then where people and torchvision put them."""
UNSIGNED_BYTE = 0x08
"""The third byte of the magic number; the fourth is the number of dimensions."""


class IdxSource:
    """All images and labels, on the device."""

    is_slow = False
    is_on_device = True

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        seed: int,
        is_training: bool,
        flip: bool,
        crop_padding: int = 0,
    ) -> None:
        """Read the two files of the training or the test set."""
        part = "train" if is_training else "t10k"
        images = read_idx(_file(folder, f"{part}-images-idx3-ubyte"), n_dimensions=3)
        labels = read_idx(_file(folder, f"{part}-labels-idx1-ubyte"), n_dimensions=1)
        if len(images) != len(labels):
            raise UsageError(f"{folder} has {len(images)} {part} images but {len(labels)} labels")
        self.n_classes = int(labels.max()) + 1
        self.image_size = images.shape[-1]
        self._padding = crop_padding if is_training else 0
        self._images = pad(images.unsqueeze(1).to(device), (self._padding,) * 4)
        self._labels = labels.to(device, torch.int64)
        self._seed = seed
        self._flip = flip and is_training
        self._draws_of: int | None = None
        """The epoch of the draws below, each for the whole set: none depends on a batch."""
        self._mirrored = self._corners = torch.empty(0)

    def __len__(self) -> int:
        """The number of images."""
        return len(self._labels)

    def batch(self, request: Request) -> Batch:
        """Images (n, 1, height, width) as uint8, and their labels."""
        indices = _moved(torch.tensor(request.indices), self._images.device)
        self._draw(request.epoch)
        images = self._windows(indices) if self._padding else self._images[indices]
        if self._flip:
            is_mirrored = self._mirrored[indices].view(-1, 1, 1, 1)
            images = torch.where(is_mirrored, images.flip(-1), images)
        return resized(images, request.height, request.width), self._labels[indices]

    def _windows(self, indices: torch.Tensor) -> torch.Tensor:
        """Of each padded image, what is seen from a random corner on."""
        side = torch.arange(self.image_size, device=indices.device)
        top, left = self._corners[:, indices, None].unbind(0)
        rows, columns = (top + side)[:, :, None], (left + side)[:, None, :]
        return self._images[indices[:, None, None], 0, rows, columns].unsqueeze(1)

    def _draw(self, epoch: int) -> None:
        """What is drawn for an epoch, once."""
        if self._draws_of == epoch:
            return
        n, device = len(self), self._images.device
        mirrored = torch.randint(2, (n,), generator=generator_for("flip", self._seed, epoch))
        corners = torch.randint(
            2 * self._padding + 1, (2, n), generator=generator_for("crop", self._seed, epoch)
        )
        self._mirrored, self._corners = mirrored.bool().to(device), corners.to(device)
        self._draws_of = epoch


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device, without waiting for it."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def resized(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Images of another size; as they are where the size is theirs, or 0."""
    if not height or images.shape[-2:] == (height, width):
        return images
    larger = interpolate(images.float(), (height, width), mode="bilinear", antialias=True)
    return larger.round_().clamp_(0, 255).to(torch.uint8)


def find_idx_folder(path: str) -> Path:
    """The folder that was given, or the first usual place that has the files."""
    if path:
        return Path(path)
    for place in map(Path, USUAL_PLACES):
        if any(place.glob("train-images-idx3-ubyte*")):
            return place
    raise UsageError(
        f"data.path is empty and none of {', '.join(USUAL_PLACES)} has idx files; "
        "give their folder, or install Debian's package dataset-fashion-mnist"
    )


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"data.path: {folder} has neither {name} nor {name}.gz")


def read_idx(path: Path, n_dimensions: int) -> torch.Tensor:
    """A file of unsigned bytes, its head and its size checked."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    n_head = 4 + 4 * n_dimensions
    expected = bytes([0, 0, UNSIGNED_BYTE, n_dimensions])
    if content[:4] != expected:
        raise UsageError(
            f"{path} starts with {content[:4].hex() or 'nothing'}; an idx file of bytes with "
            f"{n_dimensions} dimensions starts with {expected.hex()}"
        )
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, n_head, 4)]
    n_found, n_expected = len(content) - n_head, math.prod(sizes)
    if n_found != n_expected or not n_expected:
        shape = " x ".join(map(str, sizes))
        raise UsageError(f"{path} has {n_found} bytes of data; its head says {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[n_head:].view(sizes)
