"""Denormals: numbers below 1e-38 count as zero, which spares the CPU their slow arithmetic.

When: the model is on the CPU and numbers get that small, as in recurrent models, or weights and
activations that decay. Without such numbers it does nothing. Rounding: far below that of fp32.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Switch it on before torch starts threads, which inherit it."""
    if _is_flushing(torch):
        return
    if torch.set_flush_denormal(True):
        process.on_undo(lambda: torch.set_flush_denormal(False))
        process.did("denormal numbers count as zero")
    else:
        process.failed("this CPU cannot flush denormal numbers")


def _is_flushing(torch: Any) -> bool:
    return float((torch.full((1,), 1e-38) * 1e-3).item()) == 0.0


def applies(workload: Workload) -> Decision:
    """A model on the CPU."""
    if workload.device != "cpu":
        return Decision(False, "the model is not on the CPU")
    return Decision(True, "the CPU is slow with denormal numbers, if there are any")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """One line behind the imports."""
    site = workload.model_site
    return (insert_after_import(site, "torch.set_flush_denormal(True)"),)


LEVER = Lever(
    name="flush_denormals",
    summary="denormal numbers count as zero on the CPU",
    changes="rounding",
    bound=1e-6,
    risk="safe",
    phases=("forward", "backward", "optimizer"),
    saves=lambda workload: 0.03,
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
