"""Prefetch factor: how many batches each worker of a DataLoader makes in advance.

When: loaders have workers and the time of a batch varies, so that the two batches that torch keeps
by default run out. Costs the memory of the batches that wait. The same samples in the same order.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, whole_number
from hotlap.levers.common.loaders import (
    edit_those_with_workers,
    only_with_workers,
    waits_for_data,
    with_workers,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload
from hotlap.wording import n_of

DEFAULT = 2
"""What torch takes where the script says nothing."""
VALUES = ("4", "8")


def apply(torch: Any, value: str, process: Process) -> None:
    """Have the workers of all loaders that have some make more in advance."""

    def change(kind: type, arguments: dict[str, Any]) -> None:
        before = arguments["prefetch_factor"] or DEFAULT
        if arguments["num_workers"] > 0 and before < int(value):
            arguments["prefetch_factor"] = int(value)
            name = type(arguments["dataset"]).__name__
            n_batches = n_of(int(value), "batch", "batches")
            process.did(f"each worker of {name} makes {n_batches} in advance, it was {before}")

    process.on_loader(change)


def values(workload: Workload) -> tuple[str, ...]:
    """Those that are more than some loader has."""
    return tuple(value for value in VALUES if _loaders(workload, int(value)))


def _loaders(workload: Workload, factor: int) -> tuple[Seen, ...]:
    return tuple(
        one for one in workload.loaders if (one.facts.get("prefetch_factor") or DEFAULT) < factor
    )


def applies(workload: Workload) -> Decision:
    """There are workers, or could be, that make fewer batches in advance."""
    if workload.loaders and not values(workload):
        return Decision(False, f"the workers make {VALUES[-1]} batches or more in advance already")
    return with_workers(workload, waits_for_data(workload))


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`prefetch_factor` of each loader with workers."""
    loaders = _loaders(workload, int(value))
    return edit_those_with_workers(workload, loaders, "prefetch_factor", value)


LEVER = Lever(
    name="prefetch_factor",
    summary="each loader worker makes more batches in advance",
    changes="nothing",
    risk="safe",
    phases=("data",),
    saves=lambda workload: 0.1,
    values=values,
    takes=whole_number(DEFAULT),
    applies=applies,
    apply=apply,
    edit=edit,
    only_with=only_with_workers,
)
