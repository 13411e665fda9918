"""fused_optimizer: the whole update of all parameters in one kernel.

When: Adam, AdamW, SGD and Adagrad with their own choice of implementation; most with many small
parameters; Adagrad on a GPU from torch 2.13 on. Costs nothing. Sparse gradients are not supported.
A script that says `fused` or `foreach` itself is left alone. Rounding: the same formula, rounded
fewer times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.optimizers import (
    all_tensors,
    choice_kept,
    edit_optimizers,
    is_unset,
    keep_parameters,
    unset_optimizers,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload, version_of

KINDS = ("AdamW", "Adam", "SGD", "Adagrad")
DEVICES = ("cpu", "cuda")
ADAGRAD_ON_GPUS = (2, 13)
"""The torch that is known to have it; older ones raise at the first update.

https://github.com/pytorch/pytorch/pull/177672
"""


def apply(torch: Any, value: str, process: Process) -> None:
    """Have optimizers of these classes made with `fused=True`."""

    def change(kind: type, arguments: dict[str, Any]) -> Callable[[Any], None] | None:
        if kind.__name__ not in KINDS or not is_unset(arguments, "fused"):
            return None
        keep_parameters(arguments)
        tensors = all_tensors(arguments)
        can = [kind.__name__ in kinds(t.device.type, torch.__version__) for t in tensors]
        if not can or not all(can) or not all(t.is_floating_point() for t in tensors):
            return None
        arguments["fused"] = True
        process.did(f"{kind.__name__} is made with fused=True")
        return choice_kept(process, "fused")

    process.on_optimizer(change)


def kinds(device: str, torch_version: str) -> tuple[str, ...]:
    """The classes that can be fused on a device."""
    if device == "cuda" and version_of(torch_version) < ADAGRAD_ON_GPUS:
        return tuple(one for one in KINDS if one != "Adagrad")
    return KINDS if device in DEVICES else ()


def applies(workload: Workload) -> Decision:
    """An optimizer that can be fused and was not told how."""
    here = kinds(workload.device, workload.torch)
    if not any(one.facts.get("kind") in here for one in workload.optimizers):
        return Decision(False, f"no optimizer of the kinds that can be fused ({', '.join(KINDS)})")
    if not unset_optimizers(workload, here):
        return Decision(False, "the script chooses the optimizer's implementation itself")
    return Decision(True, "the optimizer runs several kernels for one update")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`fused=True` where the optimizer is made."""
    here = kinds(workload.device, workload.torch)
    return edit_optimizers(unset_optimizers(workload, here), fused="True")


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
