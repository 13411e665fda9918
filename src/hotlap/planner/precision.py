"""Precisions and optimizers: the bytes that each parameter and each activation takes.

The names are the reference trainer's. `bf16` and `fp16` keep weights in fp32 and compute under
autocast; the `-master` ones hold weights in 16 bits and an fp32 copy beside the optimizer, as
Megatron and DeepSpeed do. `fp32` is what torch does if nothing is said: products in fp32, but
convolutions in TF32 where the chip has it; `fp32-strict` is fp32 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hotlap.errors import UsageError

Rate = Literal["fp32", "tf32", "16bit", "fp8"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of each number, and which of the chip's rates the products run at."""

    rate: Rate
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    """A further copy of the weights beside the optimizer's state."""
    copy_bytes: int
    """Of a weight cast for computing; 0 where weights are used as they are."""
    element_bytes: int
    """Of an activation."""
    norm_bytes: int
    """Of the residual stream and what norms give."""
    reduce_bytes: int
    """Of a gradient on its way between ranks."""
    state_bytes: int = 4
    convolution_rate: Rate | None = None
    """Where convolutions run at another rate than products."""


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", 4, 4, 0, 0, 4, 4, 4, convolution_rate="tf32"),
    "fp32-strict": Precision("fp32", 4, 4, 0, 0, 4, 4, 4),
    "tf32": Precision("tf32", 4, 4, 0, 0, 4, 4, 4),
    "fp16": Precision("16bit", 4, 4, 0, 2, 2, 4, 4),
    "bf16": Precision("16bit", 4, 4, 0, 2, 2, 4, 4),
    "bf16-master": Precision("16bit", 2, 2, 4, 0, 2, 2, 2),
    "bf16-master-fp32grad": Precision("16bit", 2, 4, 4, 0, 2, 2, 4),
    "pure-bf16": Precision("16bit", 2, 2, 0, 0, 2, 2, 2, state_bytes=2),
    "fp8": Precision("fp8", 4, 4, 0, 2, 2, 4, 4),
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What is kept of each parameter, and how often an update goes over memory."""

    n_states: int
    state_bytes: int = 0
    """Of one state; 0 stands for the precision's."""
    is_factored: bool = False
    """States are rows and columns, which are small beside the matrix."""
    temporary_bytes: int = 0
    """Of each parameter, held for a moment of an update: torch's own works on all at a time."""
    plain_bytes: int = 32
    """Moved for each parameter by torch's own, which goes over memory once an operation."""
    n_extra_products: int = 0
    """Products of a matrix with itself an update (Muon's iteration)."""


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(0, plain_bytes=12),
    "sgd-momentum": Optimizer(1),
    "adamw": Optimizer(2, temporary_bytes=4, plain_bytes=84),
    "adamw-8bit": Optimizer(2, state_bytes=1),
    "adafactor": Optimizer(0, is_factored=True),
    "lion": Optimizer(1),
    "lars": Optimizer(1),
    "lamb": Optimizer(2),
    "muon": Optimizer(1, n_extra_products=15),
}


def state_bytes(optimizer: Optimizer, precision: Precision) -> int:
    """Of the optimizer, for each parameter, without a master copy."""
    return optimizer.n_states * (optimizer.state_bytes or precision.state_bytes)


def find_precision(name: str) -> Precision:
    """By its name."""
    if name not in PRECISIONS:
        raise UsageError(f"--precision is '{name}'; there are {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def find_optimizer(name: str) -> Optimizer:
    """By its name."""
    if name not in OPTIMIZERS:
        raise UsageError(f"--optimizer is '{name}'; there are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
