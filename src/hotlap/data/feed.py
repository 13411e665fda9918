"""Feed: the one thing that a training loop iterates.

    for inputs, targets in feed.epoch(epoch, start_batch):
        ...

Batches come out on the device. On a GPU they are copied from pinned memory on a stream of their
own, one batch ahead, so that the copy of the next one runs beside the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hotlap.chronometer.keep_workers import install as keep_workers
from hotlap.chronometer.keep_workers import outlive_signals
from hotlap.data.documents import DocumentOrder
from hotlap.data.folder import FolderSource, list_images
from hotlap.data.idx import IdxSource, find_idx_folder
from hotlap.data.rectangles import AspectOrder
from hotlap.data.sampling import (
    IGNORED,
    Batch,
    BatchShape,
    Order,
    Request,
    ResumableSampler,
    Source,
)
from hotlap.data.seeds import generator_for
from hotlap.data.settings import DataSettings, check_settings, chosen_workers, image_size_of
from hotlap.data.synthetic import ImageInput, ModelInput, SyntheticSource
from hotlap.data.tokens import DocumentSource, WindowSource, open_tokens
from hotlap.errors import UsageError
from hotlap.wording import n_of


@dataclass(frozen=True, slots=True)
class Loading:
    """How batches get from a source to the device."""

    n_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = True
    prefetch_factor: int = 2
    has_loader: bool = True
    """Else batches are taken from the source itself: what is on the device gains nothing by it."""


class Feed:
    """Batches of one rank, epoch by epoch; the same ones however they are loaded."""

    def __init__(
        self,
        source: Source,
        order: Order,
        shape: BatchShape,
        device: torch.device,
        loading: Loading,
    ) -> None:
        """Use `build_feed` to have all of it made from settings."""
        self._source = source
        self._order = order
        self._shape = shape
        self._device = device
        self._batches = _Batches(source)
        self._queue = _Queue()
        self._loader = _loader(self._batches, self._queue, loading) if loading.has_loader else None

    @property
    def n_classes(self) -> int:
        """Classes of the targets: of images, or the vocabulary of tokens."""
        return self._source.n_classes

    @property
    def n_samples(self) -> int:
        """Samples of the whole set, over all ranks."""
        return len(self._source)

    @property
    def n_batches(self) -> int:
        """Of an epoch; every rank has equally many."""
        return self._order.n_batches(self._shape)

    def n_batches_of(self, batch_size: int) -> int:
        """Of an epoch with another batch size."""
        return self._order.n_batches(self._with(None, batch_size))

    def epoch(
        self,
        epoch: int,
        start_batch: int = 0,
        *,
        image_size: int | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Batch]:
        """The batches of an epoch from one of them on, of another size where one is given.

        Only one epoch of a feed can be under way.
        """
        requests = self._order.requests(epoch, start_batch, self._with(image_size, batch_size))
        if self._loader is None:
            return _checked(map(self._batches.__getitem__, requests))
        self._queue.requests = requests
        batches = _checked(self._loader)
        if self._source.is_on_device:
            return batches
        if self._device.type == "cuda":
            return _one_ahead(batches, self._device)
        return _moved(batches, self._device)

    def _with(self, image_size: int | None, batch_size: int | None) -> BatchShape:
        if batch_size is not None and isinstance(self._order, DocumentOrder):
            raise UsageError(
                f"a batch size of {batch_size} was asked for, but batches of documents are "
                "as large as data.tokens_per_batch says; set that to 0 or leave the size alone"
            )
        size = self._shape.size if batch_size is None else batch_size
        side = self._shape.image_size if image_size is None else image_size
        return BatchShape(size, side)


class _Queue(Sampler):
    """What the loader is to make next: changed between epochs, while its workers live on."""

    def __init__(self) -> None:
        self.requests: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.requests


class _Batches(Dataset):
    """A source as a data set whose items are whole batches."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, request: Request) -> Batch | UsageError:
        """The batch, or what is wrong with a file: raised in a worker, it would be a traceback."""
        try:
            inputs, targets = self._source.batch(request)
        except UsageError as error:
            return error
        if request.n_real < len(request.indices):
            targets = targets.clone()  # the source's own, perhaps
            targets[request.n_real :] = IGNORED
        return inputs, targets


def _loader(batches: _Batches, queue: _Queue, loading: Loading) -> Any:
    keep_workers(torch)
    has_workers = loading.n_workers > 0
    return DataLoader(
        batches,
        batch_size=None,  # an item is a batch already
        sampler=queue,
        num_workers=loading.n_workers,
        pin_memory=loading.pin_memory,
        persistent_workers=loading.persistent_workers and has_workers,
        prefetch_factor=loading.prefetch_factor if has_workers else None,
        # Without one of its own, each epoch would take a number from the global generator, and a
        # resumed run would take one more than a run that was never stopped.
        generator=generator_for("worker"),
        # A worker that is started anew has not been here.
        worker_init_fn=outlive_signals,
    )


def _checked(items: Iterable[Batch | UsageError]) -> Iterator[Batch]:
    for item in items:
        if isinstance(item, UsageError):
            raise item
        inputs, targets = item
        yield inputs, targets


def _moved(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    for inputs, targets in batches:
        yield inputs.to(device), targets.to(device)


def _one_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Copy a batch while the one before it is trained on."""
    stream = torch.cuda.Stream(device)
    waiting: tuple[Batch, Any] | None = None
    for inputs, targets in batches:
        with torch.cuda.stream(stream):
            inputs = inputs.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
        copied = stream.record_event()
        if waiting:
            yield _handed_over(*waiting, device)
        waiting = (inputs, targets), copied
    if waiting:
        yield _handed_over(*waiting, device)


def _handed_over(batch: Batch, copied: Any, device: torch.device) -> Batch:
    """Let the loop's stream wait for the copy, and the memory for the loop's stream."""
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for tensor in batch:
        tensor.record_stream(current)
    return batch


def build_feed(
    settings: DataSettings,
    batch_size: int,
    rank: int,
    world_size: int,
    seed: int,
    device: torch.device,
    is_training: bool,
    model_input: ModelInput | None = None,
) -> Feed:
    """The feed of one rank; the batch size is the rank's own.

    What the model takes is asked for by synthetic data alone: RGB images and 1000 classes if it is
    not given.
    """
    check_settings(settings)
    if batch_size < 1:
        raise UsageError(f"the batch size is {batch_size}; it has to be 1 or more")
    device = torch.device(device)
    source = _source(settings, rank, seed, device, is_training, model_input or ImageInput())
    order = _order(settings, source, rank, world_size, seed, is_training)
    shape = _shape(settings, batch_size)
    feed = Feed(source, order, shape, device, _loading(settings, source, device, is_training))
    if feed.n_batches == 0:
        raise UsageError(
            f"the batch size is {batch_size} on each of {n_of(world_size, 'rank')}, and the "
            f"{'training' if is_training else 'validation'} set has {n_of(len(source), 'sample')}, "
            "which do not fill one batch"
        )
    return feed


def _source(
    settings: DataSettings,
    rank: int,
    seed: int,
    device: torch.device,
    is_training: bool,
    model_input: ModelInput,
) -> Source:
    if settings.kind == "folder":
        files = list_images(Path(settings.path), is_training)
        return FolderSource(files, settings, seed, is_training)
    if settings.kind == "idx":
        folder = find_idx_folder(settings.path)
        return IdxSource(folder, device, seed, is_training, settings.flip, settings.crop_padding)
    if settings.kind == "tokens":
        file = open_tokens(Path(settings.path) / ("train.bin" if is_training else "val.bin"))
        if settings.tokens_per_batch:
            return DocumentSource(file, settings.context)
        return WindowSource(file, settings.context, is_training)
    return SyntheticSource(model_input, settings, seed, rank, device)


def _order(
    settings: DataSettings, source: Source, rank: int, world_size: int, seed: int, is_training: bool
) -> Order:
    if isinstance(source, DocumentSource):
        tokens = settings.tokens_per_batch
        return DocumentOrder(source.lengths, tokens, rank, world_size, seed, is_training)
    if isinstance(source, FolderSource) and settings.rectangular_validation and not is_training:
        mine = range(rank, len(source), world_size)
        return AspectOrder(source.aspects(mine), len(source), rank, world_size)
    # Synthetic samples are random already.
    shuffle = is_training and settings.kind != "synthetic"
    drop_last = is_training and settings.drop_last
    return ResumableSampler(len(source), rank, world_size, seed, shuffle, drop_last)


def _shape(settings: DataSettings, batch_size: int) -> BatchShape:
    has_its_own_size = settings.kind in ("idx", "tokens")
    size = settings.image_size if has_its_own_size else image_size_of(settings)
    return BatchShape(batch_size, size)


def _loading(
    settings: DataSettings, source: Source, device: torch.device, is_training: bool
) -> Loading:
    is_copied = device.type == "cuda" and not source.is_on_device
    return Loading(
        # By a loader's length a Run estimates a whole validation.
        has_loader=not (source.is_on_device and is_training),
        n_workers=chosen_workers(settings) if source.is_slow else 0,
        pin_memory=is_copied and settings.pin_memory is not False,
        persistent_workers=settings.persistent_workers,
        prefetch_factor=settings.prefetch_factor,
    )
