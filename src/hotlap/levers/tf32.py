"""TF32: matrix products of 32-bit floats on tensor cores, with 10 bits of mantissa.

When: NVIDIA GPUs from Ampere (compute capability 8.0) on, a model that computes in fp32. Torch's
default is TF32 for convolutions and full fp32 for matrix products. Costs nothing. Rounding: a
product keeps about three decimal digits, sums stay in fp32.

From 2.9 on torch has a second name for this, `fp32_precision`. What is set by the older one sets
the newer one too, but not the other way round, and reading by the older one raises where the two
differ: Lightning does so, and torch.compile (https://github.com/pytorch/pytorch/issues/166387).
Hence the older one; a script that then uses the newer one itself finds both as without the lever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

SETTER = "_set_fp32_precision_setter"
OF_PRODUCTS = (("cuda", "matmul"), ("cuda", "all"), ("generic", "all"))
"""Backends and operations whose precision is that of matrix products on a GPU."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Let fp32 matrix products use TF32."""
    before = torch.get_float32_matmul_precision()
    if before == value:
        return
    put_back = _undo_of(torch, before)
    torch.set_float32_matmul_precision(value)
    process.on_undo(put_back)
    if hasattr(torch._C, SETTER):
        _give_way(torch, process, put_back)
    process.did(f"the precision of fp32 matrix products is '{value}', it was '{before}'")


def _undo_of(torch: Any, before: str) -> Callable[[], None]:
    """Sets the precision back to what it is now, by both names."""
    parts = (torch.backends.cuda, torch.backends.mkldnn)
    products = [part.matmul for part in parts if hasattr(part, "matmul")]
    precisions = [(one, one.fp32_precision) for one in products if hasattr(one, "fp32_precision")]

    def put_back() -> None:
        torch.set_float32_matmul_precision(before)
        for one, precision in precisions:
            one.fp32_precision = precision

    return put_back


def _give_way(torch: Any, process: Process, put_back: Callable[[], None]) -> None:
    """Put the precision back before the script sets that of matrix products by the newer name."""
    set_precision, lever, has_given_way = getattr(torch._C, SETTER), process.lever, False

    def setter(backend: str, operation: str, precision: str) -> None:
        nonlocal has_given_way
        # torch.compile sets what is set already.
        is_new = torch._C._get_fp32_precision_getter(backend, operation) != precision
        if (backend, operation) in OF_PRODUCTS and is_new and not has_given_way:
            has_given_way = True
            put_back()
            process.as_lever(lever, process.failed, "the script sets the precision itself")
        set_precision(backend, operation, precision)

    process.replace(torch._C, SETTER, setter)


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
    site = workload.model_site
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
