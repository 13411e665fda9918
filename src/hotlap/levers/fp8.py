"""fp8: the large linear layers multiply in 8-bit floats, scaled tensor by tensor.

When: large transformers on GPUs with fp8 tensor cores (Ada, Hopper and newer), together with
`compile`, which fuses the scaling; small layers become slower. Forward rounds to e4m3, the
gradients that come back to e5m2; each tensor is scaled by its own largest value in each step. The
last linear layer, which makes the logits, stays as it is. Parameters stay in their precision.
Rounding: one to two decimal digits a product. Watch the loss over a whole training.
"""

from __future__ import annotations

import functools
from typing import Any

from hotlap.levers.common.edits import Edit, insert_before
from hotlap.levers.common.lever import Decision, Lever
from hotlap.levers.common.modules import ForwardSwap
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

MULTIPLE_OF = 16
"""What fp8 tensor cores want of every size."""
LARGE = 1024
"""Features from which on the gain exceeds the cost of scaling, about."""
SMALLEST = 1e-12


def apply(torch: Any, value: str, process: Process) -> None:
    """Have the large linear layers of every model on a GPU multiply in fp8."""
    product = make_product(torch)
    swap = ForwardSwap(process, functools.partial(_forward, torch, product))

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
            return
        parts = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
        n = sum(swap(part) for part in parts[:-1] if type(part) is torch.nn.Linear and _fits(part))
        if n:
            process.did(f"{n} linear layers of {type(module).__name__} multiply in fp8")

    process.on_model(meet)


def _fits(part: Any) -> bool:
    sizes = (part.in_features, part.out_features)
    return part.weight.is_cuda and all(n >= LARGE and n % MULTIPLE_OF == 0 for n in sizes)


def _forward(torch: Any, product: Any, original: Any, part: Any, x: Any) -> Any:
    """The linear layer in fp8, or as it is where the number of rows does not fit."""
    n_rows = x.numel() // x.shape[-1]
    if n_rows == 0 or n_rows % MULTIPLE_OF:
        return original(part, x)
    device = x.device.type
    is_autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if is_autocast else x.dtype
    rows = product.apply(x.reshape(n_rows, x.shape[-1]), part.weight, dtype)
    if part.bias is not None:
        rows = rows + part.bias.to(dtype)
    return rows.reshape(*x.shape[:-1], part.out_features)


def make_product(torch: Any) -> Any:
    """The autograd function of x @ weight.T in fp8: its class needs torch's to be made."""
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2

    class Fp8Product(torch.autograd.Function):  # type: ignore[misc]
        """Rows of x times the transposed weight; the two are kept for backward in fp8."""

        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, dtype: Any) -> Any:
            """Round both to e4m3, multiply, and give the result in `dtype`."""
            x8, x_scale = _round(torch, x, e4m3)
            weight8, weight_scale = _round(torch, weight, e4m3)
            ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
            ctx.dtypes = x.dtype, weight.dtype
            return _multiply(torch, (x8, x_scale), (weight8.t(), weight_scale), dtype, fast=True)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            """Round the gradient to e5m2 and multiply it with the two."""
            x8, x_scale, weight8, weight_scale = ctx.saved_tensors
            x_dtype, weight_dtype = ctx.dtypes
            gradient8, scale = _round(torch, gradient, e5m2)
            back = (gradient8, scale)
            of_x = _multiply(torch, back, (_columns(weight8), weight_scale), x_dtype)
            back = (gradient8.t().contiguous(), scale)
            of_weight = _multiply(torch, back, (_columns(x8), x_scale), weight_dtype)
            return of_x, of_weight, None

    return Fp8Product


def _round(torch: Any, tensor: Any, dtype: Any) -> tuple[Any, Any]:
    """The tensor in fp8, row by row in memory, and what it has to be multiplied with."""
    largest = torch.finfo(dtype).max
    scale = tensor.detach().abs().amax().float().clamp(min=SMALLEST) / largest
    return (tensor.float() / scale).clamp(-largest, largest).to(dtype).contiguous(), scale


def _columns(matrix: Any) -> Any:
    """The same matrix, column by column in memory, as the second factor has to be."""
    return matrix.t().contiguous().t()


def _multiply(torch: Any, left: Any, right: Any, dtype: Any, fast: bool = False) -> Any:
    (a, a_scale), (b, b_scale) = left, right
    return torch._scaled_mm(
        a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=dtype, use_fast_accum=fast
    )


def applies(workload: Workload) -> Decision:
    """Linear layers on a GPU with fp8 tensor cores."""
    if workload.device != "cuda" or workload.is_rocm:
        return Decision(False, "fp8 needs an NVIDIA GPU; the model is not on one")
    if workload.capability is None or workload.capability < (8, 9):
        return Decision(False, f"{workload.device_name} has no fp8; Ada, Hopper and newer have")
    sizes = [size for one in workload.models for size in one.facts.get("linears", ())]
    if not any(min(size) >= LARGE for size in sizes):
        return Decision(False, f"no linear layer of the model has {LARGE:,} features on both sides")
    return Decision(True, "large linear layers can multiply in fp8")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """What torchao has for it."""
    model = workload.models[0].site if workload.models else None
    optimizer = workload.optimizers[0].site if workload.optimizers else None
    text = (
        "from torchao.float8 import convert_to_float8_training  # pip install torchao\n"
        "convert_to_float8_training({model}, module_filter_fn=lambda module, name: "
        f"min(module.weight.shape) >= {LARGE})"
    )
    return (insert_before(optimizer, text, model=model),)


LEVER = Lever(
    name="fp8",
    summary="the large linear layers multiply in 8-bit floats",
    changes="rounding",
    bound=5e-2,
    risk="danger zone",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.1),
    values=lambda workload: ("per-tensor",),
    only_with=lambda workload: ("compile",),
    applies=applies,
    apply=apply,
    edit=edit,
)
