"""Precision fp8: the linear layers multiply in 8-bit floats, all else is as with bf16.

The layer that makes the logits stays in bf16: its rounding goes straight into the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotlap.errors import UsageError
from hotlap.levers.common import fp8

_PRODUCT = fp8.make_product(torch)


class Fp8Linear(nn.Linear):
    """A linear layer in fp8; its parameters and their names are those of `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """As it is where the number of rows does not fit."""
        rows: Tensor = fp8.linear(torch, _PRODUCT, nn.Linear.forward, self, x)
        return rows


def check_device(device: torch.device) -> None:
    """Refuse a device without fp8 tensor cores."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    if is_nvidia and torch.cuda.get_device_capability(device) >= fp8.CAPABILITY:
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    raise UsageError(
        "compute.precision is fp8; it needs an NVIDIA GPU of compute capability 8.9 or more (Ada, "
        f"Hopper and newer), and the device is {name}: use bf16"
    )


def multiply_in_fp8(model: nn.Module) -> int:
    """Have the linear layers multiply in fp8; how many that are."""
    layers = {name: one for name, one in model.named_modules() if type(one) is nn.Linear}
    chosen = [one for name, one in layers.items() if not _makes_logits(name, model, layers)]
    chosen = [one for one in chosen if fp8.fits(one)]
    if not chosen:
        raise UsageError(
            f"compute.precision is fp8, but {type(model).__name__} has no linear layer before its "
            f"last one whose sizes are multiples of {fp8.MULTIPLE_OF}: use bf16"
        )
    for one in chosen:
        one.__class__ = Fp8Linear
    return len(chosen)


def _makes_logits(name: str, model: nn.Module, layers: dict[str, nn.Linear]) -> bool:
    """Whether a layer belongs to the head, where the model names it; else the last one does."""
    head: tuple[str, ...] | None = getattr(model, "HEAD", None)
    if head is not None:
        return name.partition(".")[0] in head
    return name == list(layers)[-1]
