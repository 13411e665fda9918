"""Which class a kernel or an operator belongs to, by its name."""

from __future__ import annotations

import re

from hotlap.records.profile import KernelClass

_OPERATORS: tuple[tuple[KernelClass, str], ...] = (
    ("collective", r"^(c10d::|gloo:|nccl:|mpi:|_c10d_functional::)|record_param_comms"),
    ("attention", r"attention|flash_attn|_efficient_attention|_cudnn_attention|sdpa"),
    ("conv", r"conv(olution|\d?d|_|$)"),
    ("norm", r"(layer|batch|group|instance|rms|local_response)_?norm"),
    (
        "matmul",
        r"(^|::|_)(mm|addmm|bmm|baddbmm|matmul|linear|einsum|addmv|mv|dot|addbmm|_scaled_mm"
        r"|_grouped_mm|mkldnn_linear|_linear_pointwise|int_mm|tensordot|bilinear)(_|$)"
        r"|packed_linear",
    ),
    (
        "copy",
        r"::(copy_|_to_copy|to|contiguous|clone|cat|stack|pin_memory|_pin_memory|_copy_from"
        r"|_copy_from_and_resize|pad|constant_pad_nd|_foreach_copy_|index_copy_|split_with_sizes_copy"
        r"|_reshape_copy)$",
    ),
    (
        "elementwise",
        r"::(_foreach_|_fused_)|::_?(log_)?softmax|::(add|sub|mul|div|rsub|neg|abs|exp|log|log1p"
        r"|sqrt|rsqrt|pow|sum|mean|var|std|max|min|amax|amin|relu|gelu|silu|sigmoid|tanh|erf|elu"
        r"|leaky_relu|hardtanh|clamp|clamp_min|clamp_max|where|masked_fill|threshold|addcmul"
        r"|addcdiv|lerp|zero|fill|ones_like|zeros_like|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+"
        r"|dropout|native_dropout|nll_loss\w*|cross_entropy\w*|mse_loss|binary_cross_entropy\w*"
        r"|sign|floor|ceil|round|reciprocal|square|isnan|isinf|isfinite|norm|linalg_vector_norm"
        r"|cumsum|sin|cos|argmax|softplus|mish|hardswish|tril|triu|maximum|minimum|all|any|prod"
        r"|logsumexp|smooth_l1_loss|huber_loss|glu|softmax|hardsigmoid|hardshrink|softshrink"
        r"|log_sigmoid|_prelu_kernel|celu|exp2|expm1|log2|log10|erfc|sgn|tan|sinh|cosh|asin|acos"
        r"|atan|atan2|trunc|frac|fmod|remainder|xlogy|nan_to_num|floor_divide)"
        r"(_backward|_forward|_data|_grad_input)*_?$"
        r"|_softmax_backward|log_softmax_backward|::(threshold|gelu|silu|sigmoid|tanh)_backward$",
    ),
)
_KERNELS: tuple[tuple[KernelClass, str], ...] = (
    ("collective", r"nccl|rccl|all_?reduce|reduce_?scatter|all_?gather|one_shot|two_shot"),
    ("attention", r"flash|fmha|attention|_attn_|sdpa"),
    (
        "norm",
        r"layer_?norm|batch_?norm|group_?norm|rms_?norm|bn_(fw|bw)|cudnn.*norm|RowwiseMoments",
    ),
    ("copy", r"memcpy|memset|copy|CatArray|nchwToNhwc|nhwcToNchw|transpose|pointwise_pad"),
    ("conv", r"conv(?!ert)|winograd|implicit_gemm|fprop|dgrad|wgrad|cudnn.*(grad|fft)"),
    ("matmul", r"gemm|gemv|nvjet|cublas|cutlass|cijk_|triton_tem|splitKreduce|_mm_|xmma"),
    (
        "elementwise",
        r"elementwise|vectorized|reduce|softmax|multi_tensor|triton_(poi|red|per|for)|foreach"
        r"|unrolled|nll_loss|cross_entropy|dropout|pointwise|fused_adam|distribution",
    ),
)
_OPERATOR_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _OPERATORS]
_KERNEL_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KERNELS]
_TENSOR_CORES = re.compile(
    r"tensorop|s1688|s16816|s161616|h884|h1688|h16816|i16832|s884|hmma|imma|[wg]gmma|nvjet"
    r"|tf32|xmma.*(bf16|f16|tf32|e4m3)|flash_(fwd|bwd)|fmha|flash_attn|cudnn.*sdpa|_tc_"
    r"|(?<!x)mma_",
    re.IGNORECASE,
)
"""A family of kernels is called xmma whatever it computes with: those that end in ffma use none."""


def operator_class(name: str) -> KernelClass:
    """The class of an operator as torch names it; nodes of autograd have only what is in them."""
    if name.startswith("autograd::") or ("::" not in name and ":" not in name):
        return "other"
    return _first(_OPERATOR_PATTERNS, name) or "other"


def kernel_class(name: str, operator: KernelClass | None) -> KernelClass:
    """The class of a kernel, by its name and by the class of the operator that launched it.

    A product inside a convolution is the convolution, elementwise work inside a norm the norm.
    """
    kind = _first(_KERNEL_PATTERNS, name)
    if kind == "matmul" and operator in ("conv", "attention"):
        return operator
    if kind == "elementwise" and operator in ("norm", "attention"):
        return operator
    return kind or operator or "other"


def uses_tensor_cores(kernel: str) -> bool:
    """Whether a kernel's name says so."""
    return _TENSOR_CORES.search(kernel) is not None


def _first(patterns: list[tuple[KernelClass, re.Pattern[str]]], name: str) -> KernelClass | None:
    return next((kind for kind, pattern in patterns if pattern.search(name)), None)
