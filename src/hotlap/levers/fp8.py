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
from hotlap.levers.common.fp8 import CAPABILITY, MULTIPLE_OF, fits, linear, make_product
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.modules import ForwardSwap
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

LARGE = 1024
"""Features from which on the gain exceeds the cost of scaling, about."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Have the large linear layers of every model on a GPU multiply in fp8."""
    product = make_product(torch)
    swap = ForwardSwap(process, functools.partial(linear, torch, product))

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        is_on_gpu = any(one.is_cuda for one in module.parameters())
        if not is_on_gpu or torch.cuda.get_device_capability() < CAPABILITY:
            return
        parts = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
        n = sum(swap(part) for part in parts[:-1] if type(part) is torch.nn.Linear and _pays(part))
        if n:
            process.did(f"{n} linear layers of {type(module).__name__} multiply in fp8")

    process.on_model(meet)


def _pays(part: Any) -> bool:
    is_large = min(part.in_features, part.out_features) >= LARGE
    return part.weight.is_cuda and is_large and fits(part)


def applies(workload: Workload) -> Decision:
    """Linear layers on a GPU with fp8 tensor cores."""
    if workload.device != "cuda" or workload.is_rocm:
        return Decision(False, "fp8 needs an NVIDIA GPU; the model is not on one")
    if workload.capability is None or workload.capability < CAPABILITY:
        return Decision(False, f"{workload.device_name} has no fp8; Ada, Hopper and newer have")
    sizes = [size for one in workload.models for size in one.facts.get("linears", ())]
    if not any(min(size) >= LARGE for size in sizes):
        return Decision(False, f"no linear layer of the model has {LARGE:,} features on both sides")
    return Decision(True, "large linear layers can multiply in fp8")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """What torchao has for it, for the same layers."""
    model = workload.model_site
    optimizer = workload.optimizers[0].site if workload.optimizers else None
    text = (
        "from torchao.float8 import convert_to_float8_training  # pip install torchao\n"
        "last_linear = [m for m in {model}.modules() if isinstance(m, torch.nn.Linear)][-1]\n"
        "convert_to_float8_training({model}, module_filter_fn=lambda module, name: "
        "type(module) is torch.nn.Linear and module is not last_linear "
        f"and min(module.weight.shape) >= {LARGE} "
        f"and all(size % {MULTIPLE_OF} == 0 for size in module.weight.shape))"
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
    takes=one_of("per-tensor"),
    only_with=lambda workload: ("compile",),
    applies=applies,
    apply=apply,
    edit=edit,
)
