"""four_channels: a fourth channel of zeros for the first convolution of RGB images.

When: images of three channels on tensor cores, whose fast kernels want channels in multiples of
four (TF32) or eight (half precision). Input and weight are padded inside that convolution: the
parameter stays as it is, for the optimizer and for checkpoints. Costs a padded copy of the input.
Rounding: adds exact zeros, but other kernels sum in another order.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit, tell
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.modules import ForwardSwap
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Pad inside the first convolution of each model, where it takes three channels."""
    pad = torch.nn.functional.pad

    def forward(original: Any, part: Any, input: Any) -> Any:  # named as torch names it
        one_channel = (0, 0, 0, 0, 0, 1)
        return part._conv_forward(pad(input, one_channel), pad(part.weight, one_channel), part.bias)

    swap = ForwardSwap(process, forward)

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        kind = torch.nn.Conv2d
        first: Any = next((part for part in module.modules() if isinstance(part, kind)), None)
        is_rgb = type(first) is kind and first.in_channels == 3 and first.groups == 1
        if is_rgb and swap(first):
            process.did(f"the first convolution of {type(module).__name__} takes 4 channels")

    process.on_model(meet)


def applies(workload: Workload) -> Decision:
    """RGB images into convolutions on tensor cores."""
    if workload.device != "cuda":
        return Decision(False, "it is for tensor cores; the model is not on a GPU")
    if workload.capability is not None and workload.capability < (7, 0):
        return Decision(False, f"{workload.device_name} has no tensor cores; Volta and newer have")
    if not workload.n_modules("Conv2d"):
        return Decision(False, "the model has no two-dimensional convolutions")
    if not any(_takes_rgb(one.facts.get("inputs", ())) for one in workload.models):
        return Decision(False, "the model takes no images of three channels")
    return Decision(True, "three input channels do not fit tensor cores")


def _takes_rgb(inputs: Any) -> bool:
    return any(len(shape) == 4 and shape[1] == 3 for shape, *_ in inputs)


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Told only: where the first convolution is made cannot be seen from outside."""
    text = (
        "torch.nn.functional.pad(images, (0, 0, 0, 0, 0, 1)) in forward, and the same of the "
        "first convolution's weight, or a first convolution of 4 input channels"
    )
    return (tell(None, text),)


LEVER = Lever(
    name="four_channels",
    summary="a fourth channel of zeros for the first convolution of RGB images",
    changes="rounding",
    bound=1e-3,
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.03),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
