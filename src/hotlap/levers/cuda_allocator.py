"""CUDA allocator: segments of GPU memory that grow in place, so that less of it lies in fragments.

When: the model is on a GPU; most where sizes vary from step to step. Saves memory that is reserved
but not used, and with it some running out of memory. Costs a little at the start. Changes nothing
of the maths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, set_environment
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload, version_of

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
SETTING = "expandable_segments"


def apply(torch: Any, value: str, process: Process) -> None:
    """Torch reads the variable when it first uses the GPU."""
    is_set = any(f"{SETTING}:True" in os.environ.get(name, "") for name in (OLD, NEW))
    if is_set and torch.version.cuda:
        process.did("segments of GPU memory grow in place")


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """Added to what is set; the newer name where torch knows it and the older one is free."""
    name = NEW if version_of(workload.torch) >= (2, 9) and OLD not in os.environ else OLD
    return {name: ",".join(filter(None, (os.environ.get(name), f"{SETTING}:True")))}


def applies(workload: Workload) -> Decision:
    """A GPU of NVIDIA's, and the environment leaves it open."""
    if workload.device != "cuda" or workload.is_rocm:
        return Decision(False, "the model is not on an NVIDIA GPU")
    if any(SETTING in os.environ.get(name, "") for name in (OLD, NEW)):
        return Decision(False, "the environment says already whether segments grow")
    return Decision(True, "GPU memory may lie in fragments")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """One variable."""
    return (set_environment(**environment(value, workload)),)


LEVER = Lever(
    name="cuda_allocator",
    summary="segments of GPU memory grow in place: fewer fragments",
    changes="nothing",
    risk="safe",
    phases=(),
    saves=lambda workload: 0.0,
    saves_memory=True,
    values=lambda workload: (SETTING,),
    takes=one_of(SETTING),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
)
