"""foreach_optimizer: each operation of the update on all parameters at once.

When: on a CPU, where torch's default is a loop in Python over the parameters; most with many small
ones. On GPUs it is the default already. Costs memory for the intermediate results of all parameters
at once. A script that says `foreach` or `fused` itself, or gives a rate as a tensor, is left alone.
Rounding: the same formula in the same order, save for the last bit here and there.
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
    has_tensor_options,
    is_unset,
    keep_parameters,
    unset_optimizers,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload

KINDS = (
    *("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax"),
    *("Adadelta", "ASGD", "Rprop"),
)


def apply(torch: Any, value: str, process: Process) -> None:
    """Have optimizers of CPU parameters made with `foreach=True`."""

    def change(kind: type, arguments: dict[str, Any]) -> Callable[[Any], None] | None:
        if kind.__name__ not in KINDS or not is_unset(arguments, "foreach"):
            return None
        keep_parameters(arguments)
        tensors = all_tensors(arguments)
        if not tensors or any(t.device.type != "cpu" for t in tensors):
            return None
        if has_tensor_options(torch, arguments):  # Adam refuses them together with foreach
            return None
        arguments["foreach"] = True
        process.did(f"{kind.__name__} is made with foreach=True")
        return choice_kept(process, "foreach")

    process.on_optimizer(change)


def _open(workload: Workload) -> list[Seen]:
    """The optimizers that the lever would change."""
    unset = unset_optimizers(workload, KINDS)
    return [one for one in unset if not one.facts.get("has_tensor_options")]


def applies(workload: Workload) -> Decision:
    """An optimizer on a CPU that was not told how."""
    if workload.device != "cpu":
        return Decision(False, "it is torch's default on a GPU")
    if not any(one.facts.get("kind") in KINDS for one in workload.optimizers):
        return Decision(False, "no optimizer of torch's that has foreach")
    if not unset_optimizers(workload, KINDS):
        return Decision(False, "the script chooses the optimizer's implementation itself")
    if not _open(workload):
        return Decision(False, "the optimizer's numbers are tensors, which foreach does not take")
    return Decision(True, "the optimizer goes through the parameters in a loop in Python")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`foreach=True` where the optimizer is made."""
    return edit_optimizers(_open(workload), foreach="True")


LEVER = Lever(
    name="foreach_optimizer",
    summary="each operation of the update on all parameters at once",
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
    needless_with=("fused_optimizer",),
)
