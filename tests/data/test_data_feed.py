"""A feed gives the same batches however they are loaded and wherever it is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count

import pytest
import torch

from hotlap.data.feed import Feed, Loading, _one_ahead, build_feed
from hotlap.data.sampling import IGNORED, Batch, BatchShape, Request, ResumableSampler
from hotlap.data.seeds import mixed_seed, random_for
from hotlap.data.settings import DataSettings
from hotlap.data.synthetic import ImageInput, TokenInput
from hotlap.errors import UsageError

CPU = torch.device("cpu")
BROKEN = 13


class NoiseSource:
    """Every sample is a draw that belongs to it, as a random crop is; one of them is broken."""

    is_slow = True
    is_on_device = False
    n_classes = 50

    def __len__(self) -> int:
        return 50

    def batch(self, request: Request) -> Batch:
        if BROKEN in request.indices and request.epoch == 99:
            raise UsageError(f"sample {BROKEN} is broken")
        draws = [random_for("sample", 0, request.epoch, i).random() for i in request.indices]
        images = torch.tensor(draws).view(-1, 1, 1, 1)
        images = images.expand(-1, 1, request.height, request.width).contiguous()
        return images, torch.tensor(request.indices)


def feed_of(n_workers: int, is_training: bool = True, persistent: bool = True) -> Feed:
    order = ResumableSampler(50, 0, 1, 5, shuffle=is_training, drop_last=is_training)
    loading = Loading(n_workers, persistent_workers=persistent)
    return Feed(NoiseSource(), order, BatchShape(8, 4), CPU, loading)


def same(first: Iterator[Batch], second: Iterator[Batch]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return bool(pairs) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_change_nothing(n_workers: int, persistent: bool) -> None:
    alone, helped = feed_of(0), feed_of(n_workers, persistent=persistent)
    for epoch in (0, 1):
        assert same(alone.epoch(epoch), helped.epoch(epoch))
    assert same(alone.epoch(1, 3), helped.epoch(1, 3))


@pytest.mark.timeout(120)
def test_an_epoch_that_was_left_in_the_middle_leaves_nothing_to_the_next() -> None:
    feed = feed_of(2)
    abandoned = feed.epoch(0)
    next(abandoned)
    assert same(feed.epoch(1), feed_of(0).epoch(1))


@pytest.mark.parametrize("start", [1, 4])
def test_a_resumed_epoch_gives_the_batches_that_were_left(start: int) -> None:
    whole = list(feed_of(0).epoch(2))
    assert same(feed_of(0).epoch(2, start), iter(whole[start:]))


def test_an_epoch_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    list(feed_of(0).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_sizes_may_change_from_epoch_to_epoch() -> None:
    feed = feed_of(0)
    inputs, targets = next(feed.epoch(0, image_size=6, batch_size=10))
    assert (inputs.shape, targets.shape) == ((10, 1, 6, 6), (10,))
    assert len(list(feed.epoch(1, batch_size=10))) == feed.n_batches_of(10) == 5
    assert next(feed.epoch(2))[0].shape == (8, 1, 4, 4)
    assert feed.n_batches == 6


def test_validation_counts_every_sample_once_and_ignores_what_fills_up() -> None:
    batches = list(feed_of(0, is_training=False).epoch(0))
    targets = torch.cat([targets for _, targets in batches])
    assert {len(inputs) for inputs, _ in batches} == {8}
    assert targets[targets != IGNORED].tolist() == list(range(50))
    assert (targets == IGNORED).sum() == 6


@pytest.mark.timeout(120)
@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_broken_sample_is_one_sentence_even_from_a_worker(n_workers: int) -> None:
    with pytest.raises(UsageError, match=r"^sample 13 is broken$"):
        list(feed_of(n_workers).epoch(99))


class FakeStream:
    """Writes down what a CUDA stream is asked for; its events are counted."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self._events = count()

    def record_event(self) -> int:
        return next(self._events)

    def wait_event(self, event: int) -> None:
        self._log.append(f"wait {event}")


class FakeTensor:
    """Writes down its copy and its hand-over."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    def to(self, device: torch.device, non_blocking: bool) -> FakeTensor:
        assert non_blocking
        self._log.append(f"copy {self._name}")
        return self

    def record_stream(self, stream: FakeStream) -> None:
        self._log.append(f"record {self._name}")


def test_on_a_gpu_a_batch_is_copied_while_the_one_before_is_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(log))
    batches = [(FakeTensor(f"x{i}", log), FakeTensor(f"y{i}", log)) for i in range(3)]
    for i, batch in enumerate(_one_ahead(batches, torch.device("cuda"))):  # type: ignore[arg-type]
        assert batch == batches[i]
        log.append(f"step {i}")
    steps = " ".join(log).split(" step ")
    assert steps[0] == "copy x0 copy y0 copy x1 copy y1 wait 0 record x0 record y0"
    assert steps[1] == "0 copy x2 copy y2 wait 1 record x1 record y1"
    assert steps[2] == "1 wait 2 record x2 record y2"
    assert steps[3] == "2"


def synthetic(rank: int = 0, seed: int = 1, **how: object) -> Feed:
    settings = DataSettings(kind="synthetic", image_size=8, n_samples=64, context=16)
    return build_feed(settings, 16, rank, 2, seed, CPU, is_training=True, **how)  # type: ignore[arg-type]


def test_synthetic_images_depend_on_seed_and_rank_alone() -> None:
    assert same(synthetic().epoch(0), synthetic().epoch(3))
    for other in (synthetic(rank=1), synthetic(seed=2)):
        assert not torch.equal(next(synthetic().epoch(0))[0], next(other.epoch(0))[0])


def test_synthetic_samples_have_the_shape_that_the_model_takes() -> None:
    images, labels = next(synthetic(model_input=ImageInput(1, 7)).epoch(0, image_size=12))
    assert (images.shape, images.dtype) == ((16, 1, 12, 12), torch.uint8)
    assert 0 <= int(labels.min()) <= int(labels.max()) < 7
    feed = synthetic(model_input=TokenInput(20))
    inputs, targets = next(feed.epoch(0))
    assert inputs.shape == targets.shape == (16, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert feed.n_classes == 20


def test_synthetic_samples_are_taken_in_turn() -> None:
    batches = [images for images, _ in synthetic().epoch(0)]
    assert len(batches) == 2
    assert not torch.equal(batches[0], batches[1])


@pytest.mark.parametrize("batch_size", [0, 40])
def test_a_batch_size_that_gives_no_batch_is_refused(batch_size: int) -> None:
    settings = DataSettings(kind="synthetic", n_samples=64)
    with pytest.raises(UsageError, match=f"the batch size is {batch_size}"):
        build_feed(settings, batch_size, 0, 2, 0, CPU, is_training=True)


def test_a_run_can_be_resumed_by_a_later_version() -> None:
    assert mixed_seed("order", 1, 2) == 8470602267951788138


def test_seeds_of_neighbours_have_nothing_in_common() -> None:
    seeds = {mixed_seed("sample", 0, e, i) for e in range(20) for i in range(20)}
    assert len(seeds) == 400
    assert mixed_seed("sample", 1, 23) != mixed_seed("sample", 12, 3)
    assert mixed_seed("order", 0, 0) != mixed_seed("sample", 0, 0)
