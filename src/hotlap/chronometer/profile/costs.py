"""FLOPs and bytes of an operator, from the shapes and types of its inputs.

A composite operator counts once, at the outermost level that is known here. Bytes are each input
read once and the output written once: what a perfect cache would move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from hotlap.chronometer.profile.operators import Operator

TYPE_BYTES = {
    **dict.fromkeys(("float", "int", "unsigned int"), 4),
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short"), 2),
    **dict.fromkeys(("bool", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
}
DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "signed char": "int8",
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product, batched or not."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


def shapes_of(operator: Operator) -> list[Shape]:
    """The shapes of an operator's inputs; empty where an input is no tensor."""
    dims = operator.event.args.get("Input Dims") or []
    return [
        tuple(one) if isinstance(one, list) and all(isinstance(n, int) for n in one) else ()
        for one in dims
    ]


def types_of(operator: Operator) -> list[str]:
    """The element types of an operator's inputs, as the profiler names them."""
    return [str(one) for one in operator.event.args.get("Input type") or []]


def dtype_of(operator: Operator) -> str | None:
    """The floating type of an operator's first tensor that has one."""
    return next((DTYPES[one] for one in types_of(operator) if one in DTYPES), None)


_FACTORS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
    "mkldnn::_linear_pointwise": (0, 1),
}
"""Where the two factors stand among an operator's inputs."""


def product_of(operator: Operator) -> Product | None:
    """The matrix product that an operator is; None for any other operator, and of sparse tensors.

    How many numbers those store is not in a trace.
    """
    places = _FACTORS.get(operator.name)
    shapes = shapes_of(operator)
    if places is None or len(shapes) <= max(places) or _is_any_sparse(operator, places):
        return None
    left, right = shapes[places[0]], shapes[places[1]]
    if operator.name.startswith("mkldnn::"):  # its second factor is the weight of a linear layer
        left, right = (prod(left[:-1]), left[-1]), right[::-1]
    if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2]:
        return None
    batch = left[0] if len(left) == 3 else 1
    return Product(batch, left[-2], right[-1], left[-1], dtype_of(operator) or "unknown")


def _is_any_sparse(operator: Operator, places: tuple[int, int]) -> bool:
    """A sparse tensor has a shape and no strides; neither have the packed weights of oneDNN."""
    strides = operator.event.args.get("Input Strides") or []
    is_packed = operator.name.startswith("mkldnn::")
    return not is_packed and any(strides[i] == [] for i in places if i < len(strides))


def cost_of(operator: Operator) -> Cost | None:
    """What an operator costs; None where it is unknown or counted with one around it."""
    if any(one.name in _COMPOSITE for one in operator.ancestors() if one is not operator):
        return None
    special = _COMPOSITE.get(operator.name)
    if special is not None:
        return special(operator)
    product = product_of(operator)
    if product is not None:
        width = _width(operator)
        moved = product.m * product.k + product.k * product.n + product.m * product.n
        return Cost(product.flops, float(width * product.batch * moved))
    if operator.is_around or operator.kind not in ("elementwise", "norm", "copy"):
        return None
    return _streamed(operator)


def _streamed(operator: Operator) -> Cost | None:
    """An operator that goes over its elements once."""
    sizes = [
        prod(shape) * TYPE_BYTES[kind]
        for shape, kind in zip(shapes_of(operator), types_of(operator), strict=False)
        if kind in TYPE_BYTES and shape
    ]
    elements = max((prod(shape) for shape in shapes_of(operator) if shape), default=0)
    if not sizes:
        return None
    if operator.name.endswith("_") and operator.kind == "copy":
        return Cost(0.0, float(sum(sizes[:2])))
    return Cost(0.0 if operator.kind == "copy" else float(elements), float(sum(sizes) + max(sizes)))


def _width(operator: Operator) -> int:
    return next((TYPE_BYTES[one] for one in types_of(operator) if one in DTYPES), 4)


def _convolution(operator: Operator) -> Cost | None:
    shapes = shapes_of(operator)
    concrete = operator.event.args.get("Concrete Inputs") or []
    if len(shapes) < 2 or len(shapes[1]) < 3:
        return None
    given, weight = shapes[0], shapes[1]
    output = _output_of(given, weight, concrete)
    if output is None:
        return None
    return _conv_cost(output, given, weight, 1, _width(operator))


def _output_of(given: Shape, weight: Shape, concrete: Sequence[str]) -> Shape | None:
    stride, padding, dilation = (_numbers(concrete, i) for i in (3, 4, 5))
    n = len(weight) - 2
    if len(concrete) > 6 and concrete[6] == "True":
        return None  # transposed
    if not (len(stride) and len(padding) and len(dilation)) or len(given) != n + 2:
        return None
    sizes = [
        (given[2 + i] + 2 * padding[i % len(padding)]
         - dilation[i % len(dilation)] * (weight[2 + i] - 1) - 1)
        // stride[i % len(stride)] + 1
        for i in range(n)
    ]  # fmt: skip
    return (given[0], weight[0], *sizes)


def _conv_backward(operator: Operator) -> Cost | None:
    shapes = shapes_of(operator)
    concrete = operator.event.args.get("Concrete Inputs") or []
    if len(shapes) < 3 or len(shapes[2]) < 3:
        return None
    wanted = [word.strip() == "True" for word in str(concrete[-1]).strip("[]").split(",")]
    n_products = sum(wanted[:2]) if len(concrete) >= 11 else 2
    return _conv_cost(shapes[0], shapes[1], shapes[2], n_products, _width(operator))


def _conv_cost(output: Shape, given: Shape, weight: Shape, n: int, width: int) -> Cost:
    """`n` products, each as large as the forward's."""
    moved = prod(output) + prod(given) + prod(weight)
    return Cost(n * 2.0 * prod(output) * prod(weight[1:]), float(n * width * moved))


def _numbers(concrete: Sequence[str], place: int) -> list[int]:
    text = str(concrete[place]) if place < len(concrete) else ""
    words = text.strip("[]").split(",")
    return [int(word) for word in words if word.strip().lstrip("-").isdigit()]


def _attention(operator: Operator) -> Cost | None:
    """Two products a score in the forward, five in the backward."""
    shapes = [shape for shape in shapes_of(operator) if len(shape) == 4]
    is_backward = "backward" in operator.name
    if len(shapes) < 3 + is_backward:
        return None
    query, key = shapes[is_backward], shapes[is_backward + 1]
    batch, heads, length, width = query
    scores = batch * heads * length * key[2]
    n_products = 5 if is_backward else 2
    moved = _width(operator) * sum(prod(shape) for shape in shapes[: 4 + 3 * is_backward])
    return Cost(n_products * 2.0 * scores * width, float(moved))


_COMPOSITE: dict[str, Callable[[Operator], Cost | None]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _conv_backward,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
}
