"""How the arithmetic of a training is done: autocast, scaling, and what is set for the process."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hotlap.errors import UsageError
from hotlap.trainer import fp8
from hotlap.trainer.settings import ComputeSettings

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the loop needs to know of the precision."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    scaler: torch.amp.GradScaler
    """Switched off for all but fp16."""

    def autocast(self) -> Any:
        """Around the model's call."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)


def set_up(settings: ComputeSettings, device: torch.device, deterministic: bool) -> Arithmetic:
    """Set torch's switches for this process."""
    if settings.precision == "fp16" and device.type == "cpu":
        raise UsageError("compute.precision is fp16; on a CPU it has to be fp32 or bf16")
    if settings.precision == "fp8":
        fp8.check_device(device)
    is_strict = settings.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if is_strict else "high")
    torch.backends.cudnn.allow_tf32 = not is_strict
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark and not deterministic
    if deterministic:
        # Torch refuses cuBLAS without it; it is read when the first matrices are multiplied.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    return Arithmetic(
        device,
        AUTOCAST.get(settings.precision),
        torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16"),
    )


def cast(model: nn.Module, settings: ComputeSettings) -> nn.Module:
    """The model in the type and the memory order that it is trained in."""
    if settings.precision == "pure-bf16":
        model = model.to(torch.bfloat16)
    if settings.precision == "fp8":
        fp8.multiply_in_fp8(model)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model
