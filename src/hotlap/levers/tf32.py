"""TF32: matrix products of 32-bit floats on tensor cores, with 10 bits of mantissa.

When: NVIDIA GPUs from Ampere (compute capability 8.0) on, a model that computes in fp32. Torch's
default is TF32 for convolutions and full fp32 for matrix products. Costs nothing. Rounding: a
product keeps about three decimal digits, sums stay in fp32.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Let fp32 matrix products use TF32."""
    before = torch.get_float32_matmul_precision()
    if before != value:
        torch.set_float32_matmul_precision(value)
        process.on_undo(lambda: torch.set_float32_matmul_precision(before))
        process.did(f"the precision of fp32 matrix products is '{value}', it was '{before}'")


def applies(workload: Workload) -> Decision:
    """Ampere and newer, and not yet on."""
    if workload.device != "cuda" or workload.is_rocm:
        return Decision(False, "TF32 is a mode of NVIDIA's tensor cores; the model is not on one")
    if workload.capability is None or workload.capability < (8, 0):
        return Decision(False, f"{workload.device_name} has no TF32; Ampere and newer have")
    if workload.flags.get("matmul_precision") != "highest":
        return Decision(False, "the script has set the precision of matrix products itself")
    return Decision(True, "fp32 matrix products run without tensor cores")


def saves(workload: Workload) -> float:
    """Little for convolutions, which use it by torch's default."""
    return workload.on_device(0.05 if workload.n_modules("Conv1d", "Conv2d", "Conv3d") else 0.4)


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """One line behind the imports."""
    site = workload.models[0].site if workload.models else None
    return (insert_after_import(site, f'torch.set_float32_matmul_precision("{value}")'),)


LEVER = Lever(
    name="tf32",
    summary="fp32 matrix products on tensor cores, with a shorter mantissa",
    changes="rounding",
    bound=2e-3,
    risk="safe",
    phases=("forward", "backward"),
    saves=saves,
    values=lambda workload: ("high",),
    takes=one_of("high", "medium"),
    applies=applies,
    apply=apply,
    edit=edit,
    needless_with=("bf16", "fp16", "pure_bf16"),
)
