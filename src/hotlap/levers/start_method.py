"""Start method of loader workers: copies of the training process (fork) or processes of their own.

When: loaders have workers and the script does not choose. A forked worker shares the memory of the
training process, whose pages are copied when either writes to them; on some machines that costs a
multiple of the loading itself. A spawned one starts slowly, with an import of torch, and needs a
dataset that can be pickled and a script guarded by `if __name__ == "__main__"`. The same samples.
"""

from __future__ import annotations

import sys
from typing import Any

from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.loaders import (
    edit_those_with_workers,
    only_with_workers,
    waits_for_data,
    with_workers,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload

METHODS = ("forkserver", "spawn", "fork")


def apply(torch: Any, value: str, process: Process) -> None:
    """Start the workers of all loaders that leave the method open this way."""

    def change(kind: type, arguments: dict[str, Any]) -> None:
        default = torch.multiprocessing.get_start_method(allow_none=True) or _default()
        is_open = arguments["multiprocessing_context"] is None
        if arguments["num_workers"] > 0 and is_open and default != value:
            arguments["multiprocessing_context"] = value
            name = type(arguments["dataset"]).__name__
            process.did(f"the workers of {name} are started by '{value}', it was '{default}'")

    process.on_loader(change)


def _default() -> str:
    """What Python takes on Linux where the script says nothing."""
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


def values(workload: Workload) -> tuple[str, ...]:
    """All but the default."""
    return tuple(one for one in METHODS if one != _default())


def _loaders(workload: Workload) -> tuple[Seen, ...]:
    return tuple(one for one in workload.loaders if one.facts.get("start_method") is None)


def applies(workload: Workload) -> Decision:
    """There are workers, or could be, and the script leaves the method open."""
    if workload.loaders and not _loaders(workload):
        return Decision(False, "the script chooses how its workers are started")
    return with_workers(workload, waits_for_data(workload))


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`multiprocessing_context` of each loader with workers."""
    loaders, method = _loaders(workload), f'"{value}"'
    return edit_those_with_workers(workload, loaders, "multiprocessing_context", method)


LEVER = Lever(
    name="start_method",
    summary="loader workers are started by another method",
    changes="nothing",
    risk="safe",
    phases=("data",),
    saves=lambda workload: 0.05,
    values=values,
    takes=one_of(*METHODS),
    applies=applies,
    apply=apply,
    edit=edit,
    only_with=only_with_workers,
)
