"""How many samples there are in batches of real loaders, and in the arguments of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from hotlap.chronometer.samples import SampleCounter
from hotlap.chronometer.session import first_tensor

N_ITEMS, BATCH_SIZE = 21, 8
SIZES = [8, 8, 5]
COUNTER = SampleCounter(torch)

Collate = Callable[[list[int]], Any]


def images(n: int | list[int], *sides: int) -> list[torch.Tensor]:
    """Of three channels; of one size if that is given."""
    n = n if isinstance(n, int) else len(n)
    return [torch.zeros(3, *(sides or (6 + i, 9 - i))) for i in range(n)]


def sequences(n: list[int]) -> list[torch.Tensor]:
    return [torch.zeros(11 + i, 2) for i, _ in enumerate(n)]


def boxes(n: list[int]) -> list[dict[str, torch.Tensor]]:
    return [{"boxes": torch.zeros(3, 4)} for _ in n]


class Opaque(SimpleNamespace):
    """Nothing is known of what is in it."""


TOLD_BY_THE_BATCH: dict[str, Collate] = {
    "tensor": torch.tensor,
    "images and labels": lambda n: default_collate([(torch.zeros(3, 4, 4), i) for i in n]),
    "mapping": lambda n: default_collate([{"x": torch.zeros(5), "y": i} for i in n]),
    "two views": lambda n: [torch.zeros(len(n), 3, 4, 4)] * 2,
    "two views and labels": lambda n: ([torch.zeros(len(n), 3, 4, 4)] * 2, torch.tensor(n)),
    "two lists of parts": lambda n: default_collate([((i, i), (i, i, i)) for i in n]),
    "images beside targets": lambda n: (tuple(images(n)), tuple(boxes(n))),
    "images of one size": lambda n: (tuple(images(n, 4, 4)), tuple(boxes(n))),
    "images beside numbers": lambda n: (images(n, 4, 4), n),
    "images beside single tensors": lambda n: (images(n), [torch.tensor(i) for i in n]),
    "images beside vectors": lambda n: (images(n), [torch.zeros(4) for _ in n]),
    "images and names in a mapping": lambda n: {"images": images(n), "names": [str(i) for i in n]},
    "mappings": lambda n: [{"image": image, "height": 6} for image in images(n)],
    "inputs and targets in mappings": lambda n: default_collate(
        [({"x": torch.zeros(3)}, {"y": i}) for i in n]
    ),
    "text and its labels": lambda n: (torch.tensor(n), torch.zeros(99), torch.tensor(n)),
    "packed sequences and labels": lambda n: (
        pack_sequence(sequences(n), enforce_sorted=False),
        torch.tensor(n),
    ),
    "labels in a list with a number": lambda n: ([torch.zeros(len(n), 2), 3], torch.tensor(n)),
}
TOLD_BY_THE_LOADER: dict[str, Collate] = {
    "images alone": images,
    "images of one size alone": lambda n: images(n, 4, 4),
    "images and labels in pairs": lambda n: [(image, 1) for image in images(n)],
    "images beside vectors as long as channels": lambda n: (
        images(n),
        [torch.zeros(3) for _ in n],
    ),
    "time first": lambda n: pad_sequence(sequences(n)),
    "time first, with lengths": lambda n: (pad_sequence(sequences(n)), torch.tensor(n)),
    "a graph of all": lambda n: {"nodes": torch.zeros(7 * len(n), 3), "graphs": torch.tensor(n)},
    "text": lambda n: [str(i) for i in n],
    "opaque": lambda n: Opaque(x=torch.tensor(n)),
}


def by_case(cases: dict[str, Collate]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("collate", cases.values(), ids=list(cases))


def counted(loader: DataLoader[Any]) -> list[int | None]:
    iterator = iter(loader)
    return [COUNTER.in_batch(batch, iterator) for batch in iterator]


def indices_alone() -> list[list[int]]:
    """A sampler that says nothing about the size of its batches."""
    return list(BatchSampler(range(N_ITEMS), BATCH_SIZE, drop_last=False))


@by_case(TOLD_BY_THE_BATCH | TOLD_BY_THE_LOADER)
def test_a_loader_that_makes_batches_of_indices_knows_their_samples(collate: Collate) -> None:
    items: Any = range(N_ITEMS)
    assert counted(DataLoader(items, BATCH_SIZE, collate_fn=collate)) == SIZES


def test_a_loader_with_workers_knows_them_too() -> None:
    items: Any = range(N_ITEMS)
    loader = DataLoader(items, BATCH_SIZE, collate_fn=images, num_workers=2)
    assert counted(loader) == SIZES


@by_case(TOLD_BY_THE_BATCH)
def test_what_is_in_a_batch_tells_its_samples(collate: Collate) -> None:
    items: Any = range(N_ITEMS)
    loader = DataLoader(items, batch_sampler=indices_alone(), collate_fn=collate)
    assert counted(loader) == SIZES


@by_case(TOLD_BY_THE_LOADER)
def test_samples_that_nothing_tells_are_unknown(collate: Collate) -> None:
    items: Any = range(N_ITEMS)
    loader = DataLoader(items, batch_sampler=indices_alone(), collate_fn=collate)
    if collate is TOLD_BY_THE_LOADER["time first"]:
        # One tensor without anything beside it: its first dimension is all there is.
        assert counted(loader) == [18, 18, 15]
    else:
        assert counted(loader) == [None] * 3


@by_case(TOLD_BY_THE_BATCH | TOLD_BY_THE_LOADER)
def test_what_is_plain_at_first_sight_is_so_at_the_second(collate: Collate) -> None:
    items: Any = range(N_ITEMS)
    iterator = iter(DataLoader(items, batch_sampler=indices_alone(), collate_fn=collate))
    for batch in iterator:
        tensor = first_tensor(batch, torch.Tensor)
        if tensor is not None and COUNTER.is_plain(batch, len(tensor)):
            assert COUNTER.in_batch(batch, iterator) == len(tensor)


@pytest.mark.parametrize("name", ["tensor", "images and labels", "two views and labels"])
def test_common_batches_are_plain(name: str) -> None:
    assert COUNTER.is_plain(TOLD_BY_THE_BATCH[name](list(range(8))), 8)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N_ITEMS))


@by_case(TOLD_BY_THE_BATCH)
def test_the_last_batch_of_a_stream_is_smaller_than_what_was_asked_for(collate: Collate) -> None:
    assert counted(DataLoader(Stream(), BATCH_SIZE, collate_fn=collate)) == SIZES


def test_samples_are_what_is_left_of_those_asked_for() -> None:
    def known(n: list[int]) -> Any:
        kept = [i for i in n if i % 4]
        return torch.zeros(len(kept), 3), torch.tensor(kept)

    items: Any = range(N_ITEMS)
    assert counted(DataLoader(items, BATCH_SIZE, collate_fn=known)) == [6, 6, 3]


def test_an_item_that_is_a_batch_counts_as_one() -> None:
    items: Any = [(torch.zeros(64, 1, 5), torch.zeros(64)) for _ in range(2)]
    whole = DataLoader(items, batch_size=None)
    first = DataLoader(items, batch_size=1, collate_fn=lambda one: one[0])
    assert counted(whole) == counted(first) == [64, 64]


# What a model is given.

LINEAR = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 4))
BATCH = torch.zeros(8, 16)


@pytest.mark.parametrize(
    ("given", "n"),
    [
        ((BATCH,), 8),
        ((BATCH, torch.zeros(16, 16)), 8),
        ((None, BATCH), 8),
        (({"x": BATCH, "y": torch.zeros(3)},), 8),
        ((images(5), boxes([0] * 5)), 5),
        ((images(5, 4, 4), [torch.zeros(7)] * 5), 5),
        ((images(5),), 5),
        ((images(5, 4, 4),), 5),
        ((boxes([0] * 5),), 5),
        ((sequences([0] * 5),), 5),
        (([BATCH, BATCH],), 8),
        (([BATCH, BATCH], torch.zeros(8)), 8),
        (([torch.zeros(8, 3, 4, 4), torch.zeros(8, 3, 2, 2)],), 8),
        (((torch.zeros(8, 5, 16), torch.zeros(8, 5)),), 8),
        (((torch.zeros(8, 5, 16), torch.zeros(1, 8, 4)),), None),  # which of them comes first?
        ((torch.zeros(16),), 1),
        ((torch.zeros(12),), 12),  # points, of which the model makes features
        ((torch.zeros(16, dtype=torch.long),), 16),
        ((torch.tensor(1.0),), None),
        ((), None),
    ],
)
def test_samples_of_a_call(given: tuple[Any, ...], n: int | None) -> None:
    assert COUNTER.in_call(LINEAR, given, {}) == n
    by_name = {f"_{i}": value for i, value in enumerate(given)}
    assert COUNTER.in_call(LINEAR, (), by_name) == n


def test_what_a_criterion_is_given_is_a_batch() -> None:
    assert COUNTER.in_call(nn.MSELoss(), (torch.zeros(16), torch.zeros(16)), {}) == 16
