"""Orders: what ranks see together, what a resumed run sees, and that nothing is seen twice."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from hotlap.data.documents import DocumentOrder
from hotlap.data.rectangles import AspectOrder, rectangle
from hotlap.data.sampling import BatchShape, Order, Request, ResumableSampler, filled_up


def sampler(
    n: int, rank: int = 0, world: int = 1, shuffle: bool = True, drop_last: bool = True
) -> ResumableSampler:
    return ResumableSampler(n, rank, world, seed=7, shuffle=shuffle, drop_last=drop_last)


def requests(order: Order, size: int, epoch: int = 0, start: int = 0) -> list[Request]:
    return list(order.requests(epoch, start, BatchShape(size, 224)))


def real(request: Request) -> tuple[int, ...]:
    return request.indices[: request.n_real]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_see_together_the_batches_of_one_rank(world: int, drop_last: bool) -> None:
    alone = requests(sampler(101, drop_last=drop_last), size=4 * world, epoch=3)
    ranks = [
        requests(sampler(101, rank, world, drop_last=drop_last), size=4, epoch=3)
        for rank in range(world)
    ]
    assert [len(one) for one in ranks] == [len(alone)] * world
    for batch, parts in zip(alone, zip(*ranks, strict=True), strict=True):
        assert sorted(chain.from_iterable(map(real, parts))) == sorted(real(batch))


def test_a_rank_takes_every_nth_sample_of_the_global_batch() -> None:
    order = sampler(64).order(5).tolist()
    second = requests(sampler(64, rank=1, world=4), size=4, epoch=5)[2]
    assert list(second.indices) == order[32:48][1::4]


@pytest.mark.parametrize("start", [0, 1, 7, 12])
def test_a_resumed_epoch_goes_on_as_if_it_had_not_stopped(start: int) -> None:
    whole = requests(sampler(101, 1, 2), size=4, epoch=2)
    assert requests(sampler(101, 1, 2), size=4, epoch=2, start=start) == whole[start:]


def test_epochs_differ_and_an_epoch_repeats_nothing() -> None:
    first, second = (requests(sampler(96), 8, epoch) for epoch in (0, 1))
    for epoch in (first, second):
        assert sorted(chain.from_iterable(map(real, epoch))) == list(range(96))
    assert first != second


def test_the_order_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    requests(sampler(50), 5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("n", "world"), [(1, 4), (2, 4), (50, 3), (48, 3), (100, 8)])
def test_validation_sees_every_sample_once_in_equally_many_steps(n: int, world: int) -> None:
    ranks = [
        requests(sampler(n, rank, world, shuffle=False, drop_last=False), size=4)
        for rank in range(world)
    ]
    assert len({len(one) for one in ranks}) == 1
    assert sorted(chain.from_iterable(real(r) for one in ranks for r in one)) == list(range(n))
    assert all(len(r.indices) == 4 for one in ranks for r in one)


def test_a_training_epoch_leaves_the_rest_out_only_if_asked_to() -> None:
    shape = BatchShape(8)
    assert sampler(20).n_batches(shape) == 2
    assert sampler(20, drop_last=False).n_batches(shape) == 3
    assert sampler(16, drop_last=False).n_batches(shape) == 2


def test_a_batch_is_filled_up_with_real_samples_however_few_there_are() -> None:
    assert filled_up((5,), torch.tensor([8, 9]), 6) == (5, 8, 9, 8, 9, 8)
    assert filled_up((5, 6), torch.tensor([8]), 2) == (5, 6)


def documents(lengths: torch.Tensor, rank: int = 0, world: int = 1) -> DocumentOrder:
    return DocumentOrder(lengths, 100, rank, world, seed=7, shuffle=True)


LENGTHS = torch.randint(1, 101, (500,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("world", [1, 3])
def test_no_batch_of_documents_exceeds_its_tokens_and_every_document_appears_once(
    world: int,
) -> None:
    ranks = [requests(documents(LENGTHS, rank, world), 1, epoch=4) for rank in range(world)]
    assert len({len(one) for one in ranks}) == 1
    for request in chain.from_iterable(ranks):
        longest = int(LENGTHS[list(request.indices)].max())
        assert len(request.indices) * longest <= 100
    seen = sorted(chain.from_iterable(real(r) for one in ranks for r in one))
    assert seen == list(range(500))


def test_the_first_batch_has_the_longest_document_and_the_others_are_shuffled() -> None:
    batches = [LENGTHS[list(r.indices)] for r in requests(documents(LENGTHS), 1)]
    longest = [int(b.max()) for b in batches]
    assert longest[0] == int(LENGTHS.max())
    assert longest != sorted(longest, reverse=True)


def test_batches_of_documents_have_little_padding() -> None:
    batches = [LENGTHS[list(r.indices)] for r in requests(documents(LENGTHS), 1)]
    n_places = sum(len(b) * int(b.max()) for b in batches)
    assert int(LENGTHS.sum()) > 0.97 * n_places


def test_documents_resume_and_change_from_epoch_to_epoch() -> None:
    order = documents(LENGTHS, 1, 2)
    whole = requests(order, 1, epoch=1)
    assert requests(order, 1, epoch=1, start=9) == whole[9:]
    assert requests(order, 1, epoch=2) != whole
    assert len(whole) == order.n_batches(BatchShape(1))


def test_a_rank_without_a_document_makes_the_step_all_the_same() -> None:
    (only,) = requests(documents(torch.tensor([60]), rank=1, world=2), 1)
    assert (only.indices, only.n_real) == ((0,), 0)


ASPECTS = torch.rand(83, generator=torch.Generator().manual_seed(1)) * 2 + 0.4


@pytest.mark.parametrize("world", [1, 3])
def test_rectangular_validation_sees_every_image_once(world: int) -> None:
    ranks = [
        requests(AspectOrder(ASPECTS[rank::world], 83, rank, world), size=8)
        for rank in range(world)
    ]
    assert len({len(one) for one in ranks}) == 1
    seen = sorted(chain.from_iterable(real(r) for one in ranks for r in one))
    assert seen == list(range(83))


def test_a_batch_has_a_shape_near_the_ratio_of_its_images() -> None:
    batches = requests(AspectOrder(ASPECTS, 83, 0, 1), size=8)
    shapes = {(r.height, r.width) for r in batches}
    assert len(shapes) > 3
    for request in batches:
        aspect = float(ASPECTS[list(real(request))].mean().clamp(0.5, 2.0))
        assert request.width / request.height == pytest.approx(aspect, rel=0.15)


def test_more_ranks_than_images_still_make_equal_steps() -> None:
    ranks = [requests(AspectOrder(torch.ones(2)[rank::4], 2, rank, 4), size=2) for rank in range(4)]
    assert [[r.n_real for r in one] for one in ranks] == [[1], [1], [0], [0]]


def test_the_short_side_of_a_rectangle_is_the_image_size_and_the_long_one_bounded() -> None:
    assert rectangle(1.0, 224) == (224, 224)
    assert rectangle(4 / 3, 224) == (224, 288)
    assert rectangle(3 / 4, 224) == (288, 224)
    assert rectangle(20.0, 224) == (224, 448)
