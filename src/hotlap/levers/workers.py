"""Worker processes of the DataLoader: samples are made beside the training, not in its way.

When: the step waits for data, and samples cost time to make. Costs memory for each worker and a
start-up at each epoch. The same samples in the same order, but for shuffled loaders that are gone
through side by side, as by `zip`: with workers each draws the seed of its order before the next
one's iterator is made, without them at its first batch. Random numbers that the dataset draws come
from the workers' own streams. Datasets that hold tensors on a GPU are left alone, and so are
iterable ones: each worker would go through all of the data, unless the dataset shares it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, whole_number
from hotlap.levers.common.loaders import edit_loaders, waits_for_data
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload
from hotlap.wording import n_of

MAX_WORKERS = 32
"""More take long to start and much memory."""
MAX_WAITING = 16
"""More workers than CPUs pay only where they wait for a disk or a network: up to this many."""
MAX_DEPTH = 6
"""Of collections and datasets in a dataset, where tensors are looked for."""
N_LOOKED_AT = 8
"""Of a collection: where its first parts are, the others are as well."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Give loaders with fewer workers this many."""
    n_workers = int(value)

    def change(kind: type, arguments: dict[str, Any]) -> None:
        dataset, before = arguments["dataset"], arguments["num_workers"]
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if before < n_workers and not is_iterable and not _is_on_device(torch, dataset):
            arguments["num_workers"] = n_workers
            name = type(dataset).__name__
            process.did(f"the loader of {name} has {n_of(n_workers, 'worker')}, it had {before}")

    process.on_loader(change)


def _is_on_device(torch: Any, dataset: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a dataset holds tensors on a device, which a forked worker cannot use."""
    if isinstance(dataset, torch.Tensor):
        return not dataset.is_cpu
    return depth > 0 and any(_is_on_device(torch, one, depth - 1) for one in _parts(dataset))


def _parts(held: Any) -> Iterable[Any]:
    """What a collection holds, or a dataset, which may be one of others."""
    if isinstance(held, (list, tuple)):
        return held[:N_LOOKED_AT]
    if isinstance(held, dict):
        return itertools.islice(held.values(), N_LOOKED_AT)
    is_like_a_dataset = hasattr(type(held), "__getitem__")
    return list(getattr(held, "__dict__", {}).values()) if is_like_a_dataset else ()


def values(workload: Workload) -> tuple[str, ...]:
    """About as many as there are CPUs, half, and twice as many."""
    n = min(workload.n_cpus, MAX_WORKERS)
    counts = dict.fromkeys((n, n // 2, max(n, min(2 * n, MAX_WAITING))))
    return tuple(str(count) for count in counts if _loaders(workload, count))


def _loaders(workload: Workload, n_workers: int) -> tuple[Seen, ...]:
    """Those that would be given this many workers."""
    return tuple(
        loader
        for loader in workload.loaders
        if not loader.facts.get("is_iterable") and loader.facts["num_workers"] < n_workers
    )


def applies(workload: Workload) -> Decision:
    """The step waits for the data of a map-style dataset."""
    waits = waits_for_data(workload)
    if not waits.yes:
        return waits
    if all(loader.facts.get("is_iterable") for loader in workload.loaders):
        return Decision(
            False, "the dataset is iterable: each worker might repeat all of its samples"
        )
    if not values(workload):
        return Decision(False, "the loaders have as many workers as the CPUs can feed")
    return waits


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`num_workers` of each loader."""
    return edit_loaders(_loaders(workload, int(value)), num_workers=value)


LEVER = Lever(
    name="workers",
    summary="worker processes make the batches while the model trains",
    changes="nothing",
    new_randomness=True,
    risk="safe",
    phases=("data",),
    saves=lambda workload: 0.8,
    values=values,
    takes=whole_number(1),
    applies=applies,
    apply=apply,
    edit=edit,
)
