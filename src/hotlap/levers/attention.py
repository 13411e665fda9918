"""attention: which kernel torch's scaled_dot_product_attention tries first.

When: attention on an NVIDIA GPU through `scaled_dot_product_attention`. Torch goes through its
kernels in a fixed order and takes the first that can do the job; this puts another one in front.
A kernel that cannot (flash and cuDNN take no fp32) is passed over, so that nothing breaks.
What a script says by `sdpa_kernel` itself goes first. Costs nothing. Rounding: the kernels sum in
another order.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import, wrap_block
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload, version_of

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}


def apply(torch: Any, value: str, process: Process) -> None:
    """Put one kernel first in the order, for the whole process: backward may recompute."""
    from torch.nn.attention import SDPBackend

    first = int(getattr(SDPBackend, BACKENDS[value]))
    before = torch._C._get_sdp_priority_order()
    if before[0] == first:
        return
    torch._C._set_sdp_priority_order([first, *(one for one in before if one != first)])
    process.on_undo(lambda: torch._C._set_sdp_priority_order(before))
    process.did(f"scaled_dot_product_attention tries its {value} kernel first")


def values(workload: Workload) -> tuple[str, ...]:
    """The kernels that could be faster; flash stands first in torch's own order."""
    is_hopper = workload.capability is not None and workload.capability >= (9, 0)
    return ("cudnn", "efficient") if is_hopper else ("efficient", "cudnn")


def applies(workload: Workload) -> Decision:
    """Attention on an NVIDIA GPU, with a torch that has the order."""
    if workload.device != "cuda" or workload.is_rocm:
        return Decision(False, "there is a choice of kernels on NVIDIA GPUs only")
    if version_of(workload.torch) < (2, 6):
        return Decision(
            False, f"torch {workload.torch} has no order of kernels; 2.6 and newer have"
        )
    kinds = {kind for model in workload.models for kind in model.facts.get("kinds", {})}
    if not any("attention" in kind.lower() or "Transformer" in kind for kind in kinds):
        return Decision(False, "no module of the model is named after attention")
    return Decision(True, "torch takes the first attention kernel that can, not the fastest")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """The model's call under `with`."""
    start = workload.model_site
    end = workload.backwards[0].site if workload.backwards else None
    names = (BACKENDS[value], *(name for key, name in BACKENDS.items() if key != value))
    order = ", ".join(f"torch.nn.attention.SDPBackend.{name}" for name in names)
    text = f"with torch.nn.attention.sdpa_kernel([{order}], set_priority=True):"
    return (
        insert_after_import(start, "import torch.nn.attention"),
        wrap_block(start, end, text),
    )


LEVER = Lever(
    name="attention",
    summary="another kernel of scaled_dot_product_attention is tried first",
    changes="rounding",
    bound=5e-3,
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.05),
    values=values,
    takes=one_of(*BACKENDS),
    applies=applies,
    apply=apply,
    edit=edit,
)
