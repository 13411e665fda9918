"""bf16: the model's calls in autocast, with 8 bits of mantissa and the range of fp32.

When: NVIDIA GPUs from Ampere on, CPUs with bf16 instructions (avx512_bf16, AMX), a model in fp32.
The outermost call of each model runs in `torch.autocast`; what it returns is cast back to fp32, so
that the script's loss is computed in fp32. Validation runs in bf16 as well. Parameters, gradients
and optimizer state stay in fp32. Rounding: a product keeps two to three decimal digits. Grouped
convolutions can become slower. On some virtual machines AMX is advertised and kills the process:
`onednn_isa` keeps oneDNN off it.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.autocast import (
    autocast_calls,
    autocast_edits,
    best_with,
    has_bf16,
    in_fp32,
)
from hotlap.levers.common.edits import Edit
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Call fp32 models in bf16 autocast."""
    autocast_calls(torch, process, torch.bfloat16)


def applies(workload: Workload) -> Decision:
    """An fp32 model on a device with bf16 arithmetic."""
    bf16 = has_bf16(workload)
    return in_fp32(workload) if bf16.yes else bf16


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Calls of models under `with`."""
    return autocast_edits(workload, "bfloat16")


LEVER = Lever(
    name="bf16",
    summary="the model computes in bf16 autocast; loss, parameters and gradients stay in fp32",
    changes="rounding",
    bound=2e-2,
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.5),
    values=lambda workload: ("autocast",),
    takes=one_of("autocast"),
    applies=applies,
    apply=apply,
    edit=edit,
    best_with=best_with,
    needs=("onednn_isa",),
    new_dropout=True,
    instead_of=("fp16",),
    needless_with=("pure_bf16",),
)
