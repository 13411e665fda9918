"""Persistent workers: the processes of a DataLoader stay from one epoch to the next.

When: loaders have workers and epochs are short, so that starting the workers counts; a trial within
one epoch cannot show it. Costs the workers' memory during validation. The same samples in the same
order: torch draws one random number for each new iterator, which it does not for one that stays, so
that the lever draws it; with the edit alone a shuffled loader has another order from the second
epoch on. A loop inside a loop over the same loader has workers of its own, as it would without the
lever; with the edit alone the outer one is started over. A dataset that the script changes between
epochs stays as it was in the workers.
"""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.loaders import (
    edit_those_with_workers,
    only_with_workers,
    waits_for_data,
    with_workers,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Let the workers of all loaders that have some stay."""
    iterator_class = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    reset = iterator_class._reset
    datasets: set[int] = set()

    def begin_anew(iterator: Any, loader: Any, first_iter: bool = False) -> Any:
        if not first_iter and id(loader.dataset) in datasets:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return reset(iterator, loader, first_iter)

    process.replace(iterator_class, "_reset", begin_anew)
    _keep_loops_apart(torch, process, datasets)

    def change(kind: type, arguments: dict[str, Any]) -> None:
        if arguments["num_workers"] > 0 and not arguments["persistent_workers"]:
            arguments["persistent_workers"] = True
            datasets.add(id(arguments["dataset"]))
            process.did(f"the workers of {type(arguments['dataset']).__name__} stay")

    process.on_loader(change)


def _keep_loops_apart(torch: Any, process: Process, datasets: set[int]) -> None:
    """Give a loop workers of its own while another one over the same loader goes on."""
    loader_class = torch.utils.data.DataLoader
    iterator_class = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    iterate, fetch = loader_class.__iter__, iterator_class._next_data
    ended: WeakSet[Any] = WeakSet()

    @functools.wraps(fetch)
    def next_data(iterator: Any) -> Any:
        try:
            return fetch(iterator)
        except StopIteration:
            ended.add(iterator)
            raise

    @functools.wraps(iterate)
    def iterate_apart(loader: Any) -> Any:
        if id(loader.dataset) in datasets and loader._iterator is not None:
            if loader._iterator in ended:  # the script may still have a name for it
                ended.discard(loader._iterator)
            elif _n_references(loader) > N_UNUSED:
                loader._iterator = None
        return iterate(loader)

    process.replace(iterator_class, "_next_data", next_data)
    process.replace(loader_class, "__iter__", iterate_apart)


def _n_references(loader: Any) -> int:
    """To the iterator that a loader keeps: a loop over it has one more."""
    return sys.getrefcount(loader._iterator)


N_UNUSED = _n_references(SimpleNamespace(_iterator=object()))
"""Of an iterator that only its loader has, as this Python counts."""


def applies(workload: Workload) -> Decision:
    """There are workers, or could be, that end with the epoch."""
    if workload.loaders and all(one.facts.get("persistent_workers") for one in workload.loaders):
        return Decision(False, "the workers of all loaders stay already")
    return with_workers(workload, waits_for_data(workload))


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`persistent_workers` of each loader with workers."""
    loaders = [one for one in workload.loaders if not one.facts.get("persistent_workers")]
    return edit_those_with_workers(workload, loaders, "persistent_workers", "True")


LEVER = Lever(
    name="persistent_workers",
    summary="loader workers stay from one epoch to the next",
    changes="nothing",
    new_randomness=True,
    risk="safe",
    phases=("data",),
    saves=lambda workload: 0.1,
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
    only_with=only_with_workers,
)
