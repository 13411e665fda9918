"""Garbage collection: Python does not go through all of its objects in the middle of a step.

When: steps are short, or the script holds very many Python objects. When training begins, what
exists is collected once and then set aside, and from then on the collector runs a tenth as often.
Costs memory where a script makes cycles of objects, for those are freed later. Changes nothing of
the maths.
"""

from __future__ import annotations

import gc
from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

N_YOUNG = 10_000
"""New objects before the collector looks at them."""
DEFAULTS = (700, 2000)
"""What Python sets as that number: up to 3.12, and from 3.13 on."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Set aside what exists before the first training call."""
    before = gc.get_threshold()

    def change(module: Any, args: Any, kwargs: Any) -> None:
        if not gc.isenabled() or gc.get_threshold() != before or before[0] not in DEFAULTS:
            return  # done already, or the script has a way of its own
        gc.collect()
        gc.freeze()
        gc.set_threshold(N_YOUNG, *before[1:])
        process.on_undo(lambda: _restore(before))
        n_objects = gc.get_freeze_count()
        process.did(f"{n_objects} objects are set aside, the threshold is {N_YOUNG}")

    process.on_model(change)


def _restore(threshold: tuple[int, int, int]) -> None:
    gc.unfreeze()
    gc.set_threshold(*threshold)


def applies(workload: Workload) -> Decision:
    """The collector is as Python sets it."""
    threshold = workload.flags.get("gc_threshold")
    if threshold and threshold[0] not in DEFAULTS:
        return Decision(False, "the script sets the garbage collector itself")
    return Decision(True, "Python's garbage collector runs in the step")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Behind the imports, which make most of the objects: the model's line runs in every step."""
    site = workload.model_site
    text = f"import gc\ngc.collect()\ngc.freeze()\ngc.set_threshold({N_YOUNG}, 10, 10)"
    return (insert_after_import(site, text),)


LEVER = Lever(
    name="gc_pauses",
    summary="Python's garbage collector leaves long-lived objects alone and runs less often",
    changes="nothing",
    risk="safe",
    phases=("data", "forward", "backward", "optimizer", "other"),
    saves=lambda workload: 0.03,
    values=lambda workload: ("freeze",),
    takes=one_of("freeze"),
    applies=applies,
    apply=apply,
    edit=edit,
)
