"""Linear layers that multiply in fp8, scaled tensor by tensor.

Forward rounds to e4m3, the gradients that come back to e5m2; each tensor is scaled by its own
largest value in each step. Parameters, and what is between the layers, stay in their precision.
"""

from __future__ import annotations

from typing import Any

CAPABILITY = (8, 9)
"""Of NVIDIA's GPUs, the first with fp8 tensor cores: Ada; Hopper and newer have them too."""
MULTIPLE_OF = 16
"""What fp8 tensor cores want of every size."""
SMALLEST = 1e-12


def fits(part: Any) -> bool:
    """Whether the sizes of a linear layer are those that fp8 tensor cores take."""
    return all(n % MULTIPLE_OF == 0 for n in (part.in_features, part.out_features))


def linear(torch: Any, product: Any, original: Any, part: Any, x: Any) -> Any:
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
