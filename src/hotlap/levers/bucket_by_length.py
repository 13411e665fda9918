"""Buckets by length: a batch holds samples of like length, so that little of it is padding.

When: samples vary in length, the script pads them with a `collate_fn` of its own, and the loader
shuffles. The data is shuffled, cut into pools of many batches, each pool sorted by length, and the
batches of all pools shuffled. Costs a look at every sample's length, once: from `dataset.lengths`,
or from the samples where reading all of them takes two seconds at most. Another order of the data:
the samples of a batch are no longer independent of each other.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hotlap.levers.common.edits import Edit, tell
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload

POOL_BATCHES = 50
"""A pool of so many batches: enough to sort, and few enough to stay random."""
N_PROBED = 32
MAX_READING_S = 2.0
"""For reading the lengths of a whole dataset."""
MIN_SPREAD = 1.2
"""The longest sample over the mean one: with less there is little padding to save."""


class ByLength:
    """A sampler whose consecutive samples make up batches of like length."""

    def __init__(self, torch: Any, lengths: Sequence[int], batch_size: int, generator: Any) -> None:
        self._torch, self._lengths, self._batch_size = torch, lengths, batch_size
        self._generator = generator

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        generator = self._generator or self._new_generator()
        order = self._permutation(len(self), generator)
        n_whole = len(order) - len(order) % self._batch_size
        batches = [
            batch
            for start in range(0, n_whole, self._batch_size * POOL_BATCHES)
            for batch in self._batches(
                order[start : start + self._batch_size * POOL_BATCHES][: n_whole - start]
            )
        ]
        for i in self._permutation(len(batches), generator):
            yield from batches[i]
        yield from order[n_whole:]  # the batch that is not whole comes last, as it always does

    def _new_generator(self) -> Any:
        """As torch's own shuffling does it: seeded by the default generator."""
        seed = int(self._torch.empty((), dtype=self._torch.int64).random_().item())
        return self._torch.Generator().manual_seed(seed)

    def _permutation(self, n: int, generator: Any) -> list[int]:
        permutation: list[int] = self._torch.randperm(n, generator=generator).tolist()
        return permutation

    def _batches(self, pool: list[int]) -> list[list[int]]:
        pool = sorted(pool, key=self._lengths.__getitem__)
        return [pool[i : i + self._batch_size] for i in range(0, len(pool), self._batch_size)]


def apply(torch: Any, value: str, process: Process) -> None:
    """Give loaders that shuffle samples of varying length a sampler that sorts them."""

    def change(kind: type, arguments: dict[str, Any]) -> None:
        dataset, size = arguments["dataset"], arguments["batch_size"]
        is_taken = arguments["sampler"] is not None or arguments["batch_sampler"] is not None
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if is_taken or is_iterable or not arguments["shuffle"] or not arguments["collate_fn"]:
            return
        if not isinstance(size, int) or size < 2:
            return
        lengths = lengths_of(torch, dataset)
        if lengths is not None:
            arguments["shuffle"] = None
            arguments["sampler"] = ByLength(torch, lengths, size, arguments["generator"])
            process.did(f"batches of {type(dataset).__name__} hold samples of like length")

    process.on_loader(change)


def lengths_of(torch: Any, dataset: Any) -> list[int] | None:
    """The length of each sample; None where they hardly differ or take too long to find."""
    if not hasattr(dataset, "__len__") or len(dataset) < 2:
        return None
    known = getattr(dataset, "lengths", None)
    if known is not None and not callable(known) and len(known) == len(dataset):
        lengths = [int(length) for length in known]
    else:
        with _same_randomness(torch):
            lengths = _read_lengths(torch, dataset) or []
    if not lengths or max(lengths) < MIN_SPREAD * sum(lengths) / len(lengths):
        return None
    return lengths


def _read_lengths(torch: Any, dataset: Any) -> list[int] | None:
    """From the samples themselves, where some of them show that it is quick."""
    n = len(dataset)
    began = time.perf_counter()
    probed = [sample_length(torch, dataset[i]) for i in range(0, n, max(1, n // N_PROBED))]
    seconds_each = (time.perf_counter() - began) / len(probed)
    if None in probed or len(set(probed)) == 1 or seconds_each * n > MAX_READING_S:
        return None
    lengths = [sample_length(torch, dataset[i]) for i in range(n)]
    return [length for length in lengths if length is not None] if None not in lengths else None


def sample_length(torch: Any, sample: Any) -> int | None:
    """Of a tensor, list or string; of the first such thing in a tuple or a mapping."""
    if isinstance(sample, (tuple, Mapping)):
        parts = sample.values() if isinstance(sample, Mapping) else sample
        found = (sample_length(torch, part) for part in parts)
        return next((length for length in found if length is not None), None)
    if isinstance(sample, torch.Tensor):
        return len(sample) if sample.dim() else None
    return len(sample) if isinstance(sample, (Sequence, bytes)) else None


@contextlib.contextmanager
def _same_randomness(torch: Any) -> Iterator[None]:
    """Samples may be made with random numbers: draw none of the training's."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(state)


def _loaders(workload: Workload) -> tuple[Seen, ...]:
    def fits(facts: dict[str, Any]) -> bool:
        is_taken = facts.get("has_sampler") or facts.get("has_batch_sampler")
        is_whole = facts.get("has_collate") and facts.get("shuffle") and not is_taken
        return bool(
            is_whole and not facts.get("is_iterable") and (facts.get("batch_size") or 0) > 1
        )

    return tuple(one for one in workload.loaders if fits(one.facts))


def applies(workload: Workload) -> Decision:
    """A loader that shuffles a map-style dataset and collates with a function of the script's."""
    if not workload.loaders:
        return Decision(False, "the script makes no DataLoader")
    if not _loaders(workload):
        return Decision(False, "no loader both shuffles by itself and has a collate_fn to pad with")
    return Decision(True, "a collate_fn of the script's may be padding samples of unlike length")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Told only: it takes the lengths, which the script alone knows where to find."""
    text = (
        "DataLoader(..., shuffle=False, sampler=...) with a sampler that shuffles, sorts pools of "
        f"{POOL_BATCHES} batches by length, and shuffles the batches"
    )
    return tuple(tell(loader.site, text) for loader in _loaders(workload))


LEVER = Lever(
    name="bucket_by_length",
    summary="batches of samples of like length, with less padding",
    changes="maths",
    risk="danger zone",
    phases=("data", "transfer", "forward", "backward"),
    saves=lambda workload: 0.3,
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
