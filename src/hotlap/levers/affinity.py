"""Affinity: each thread of torch stays on a core of its own, with its caches.

When: one process trains on the CPU, with several threads and no loader workers. OpenMP pins the
training thread to the first core when it is loaded, and whatever that thread starts stays there
with it: loader workers would all share one core, and so would the processes of several ranks.
Changes nothing of the maths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, set_environment
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

PLACES, BIND = "OMP_PLACES", "OMP_PROC_BIND"
TAKEN = (PLACES, BIND, "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which a user may have pinned threads already."""


def apply(torch: Any, value: str, process: Process) -> None:
    """OpenMP has read the variables by now; loaders with workers do not go with them."""
    if os.environ.get(BIND) == value and os.environ.get(PLACES):
        process.did(f"OpenMP pins threads to {os.environ[PLACES]}, bound '{value}'")

    def see(kind: type, arguments: dict[str, Any]) -> None:
        if arguments["num_workers"] > 0:
            process.failed("all loader workers would run on the training thread's core")

    process.on_loader(see)


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """What OpenMP reads when it is loaded."""
    return {PLACES: "cores", BIND: value}


def applies(workload: Workload) -> Decision:
    """One process on the CPU, several threads, no workers, nothing pinned yet."""
    if workload.device != "cpu":
        return Decision(False, "the model is not on the CPU")
    if any(name in os.environ for name in TAKEN):
        return Decision(False, "the environment says already where threads run")
    if workload.n_cpus < 2 or workload.flags.get("n_threads") == 1:
        return Decision(False, "there is one thread to pin, which the system does as well")
    if workload.world_size > 1:
        return Decision(False, "the processes of all ranks would be pinned to the same cores")
    if any(loader.facts.get("num_workers") for loader in workload.loaders):
        return Decision(False, "loader workers would be pinned to the training thread's core")
    return Decision(True, "threads may be moved from core to core")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Two variables."""
    return (set_environment(**environment(value, workload)),)


LEVER = Lever(
    name="affinity",
    summary="each thread stays on a core of its own",
    changes="nothing",
    risk="safe",
    phases=("forward", "backward", "optimizer"),
    saves=lambda workload: 0.05,
    values=lambda workload: ("close",),
    takes=one_of("close", "spread"),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
)
