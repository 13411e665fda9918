"""fused_optimizer: the whole update of all parameters in one kernel.

When: Adam, AdamW, SGD and Adagrad with their own choice of implementation; most with many small
parameters. Costs nothing. Sparse gradients are not supported. A script that says `fused` or
`foreach` itself is left alone. Rounding: the same formula, rounded fewer times.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.optimizers import (
    all_tensors,
    edit_optimizers,
    is_unset,
    keep_parameters,
    unset_optimizers,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

KINDS = ("AdamW", "Adam", "SGD", "Adagrad")
DEVICES = ("cpu", "cuda")


def apply(torch: Any, value: str, process: Process) -> None:
    """Have optimizers of these classes made with `fused=True`."""

    def change(kind: type, arguments: dict[str, Any]) -> None:
        if kind.__name__ not in KINDS or not is_unset(arguments, "fused"):
            return
        keep_parameters(arguments)
        tensors = all_tensors(arguments)
        if tensors and all(t.is_floating_point() and t.device.type in DEVICES for t in tensors):
            arguments["fused"] = True
            process.did(f"{kind.__name__} is made with fused=True")

    process.on_optimizer(change)


def applies(workload: Workload) -> Decision:
    """An optimizer that can be fused and was not told how."""
    if not any(one.facts.get("kind") in KINDS for one in workload.optimizers):
        return Decision(False, f"no optimizer of the kinds that can be fused ({', '.join(KINDS)})")
    if not unset_optimizers(workload, KINDS):
        return Decision(False, "the script chooses the optimizer's implementation itself")
    return Decision(True, "the optimizer runs several kernels for one update")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`fused=True` where the optimizer is made."""
    return edit_optimizers(workload, KINDS, fused="True")


LEVER = Lever(
    name="fused_optimizer",
    summary="the whole update of all parameters in one kernel",
    changes="rounding",
    bound=1e-5,
    risk="safe",
    phases=("optimizer",),
    saves=lambda workload: 0.5,
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
