"""Threads: how many of them one operation of torch on the CPU is split into.

When: the model is on the CPU. Torch takes one for each physical core that it sees, launchers often
set one, and both can be wrong for the CPUs that are allocated, or for a small model. Rounding: a
sum that is split otherwise is rounded otherwise. A script that sets the number itself keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, whole_number
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload
from hotlap.wording import n_of


def apply(torch: Any, value: str, process: Process) -> None:
    """Set the number now; when training begins, see whether it is still that."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(value))
    process.on_undo(lambda: torch.set_num_threads(before))
    is_told = False

    def tell(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal is_told
        if is_told:
            return
        is_told, now = True, torch.get_num_threads()
        if now == int(value):
            process.did(f"operations are split into {value} threads")
        else:
            process.failed(f"the script sets the number of threads itself, to {now}")

    process.on_model(tell)


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """Also for libraries beside torch, and against launchers that set one thread."""
    return {"OMP_NUM_THREADS": value}


def values(workload: Workload) -> tuple[str, ...]:
    """All CPUs, half of them, one; but for what is set."""
    n = workload.n_cpus
    counts = dict.fromkeys((n, n // 2, 1))
    return tuple(
        str(count) for count in counts if count and count != workload.flags.get("n_threads")
    )


def applies(workload: Workload) -> Decision:
    """A model on a CPU with more than one core."""
    if workload.device != "cpu":
        return Decision(False, "the model is not on the CPU")
    if not values(workload):
        return Decision(False, "there is one CPU, and one thread")
    n_threads = workload.flags.get("n_threads")
    return Decision(True, f"{n_threads} threads run on {n_of(workload.n_cpus, 'CPU')}")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """One line behind the imports."""
    site = workload.model_site
    return (insert_after_import(site, f"torch.set_num_threads({value})"),)


LEVER = Lever(
    name="threads",
    summary="operations on the CPU are split into another number of threads",
    changes="rounding",
    bound=1e-5,
    risk="safe",
    phases=("forward", "backward", "optimizer"),
    saves=lambda workload: 0.2,
    values=values,
    takes=whole_number(1),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
)
