"""What is trained, apart from the model: the batch, the arithmetic, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.errors import UsageError
from hotlap.planner.precision import (
    Optimizer,
    Precision,
    find_optimizer,
    find_precision,
    state_bytes,
)


@dataclass(frozen=True, slots=True)
class Training:
    """One step of it."""

    batch: int
    """Global, in sequences or images."""
    micro_batch: int
    """Of one replica, a backward."""
    precision_name: str
    optimizer_name: str
    overlaps: bool = True
    """Gradients travel while backward goes on, and parameters before they are needed."""
    overlaps_tensor: bool = False
    """Tensor parallel sums travel while the product before or after them goes on, in pieces."""
    is_compiled: bool = False
    is_loss_compiled: bool = False
    """Along with the model, as one program."""
    is_channels_last: bool = False
    """Of images in eager mode; compiled convolutions are laid out so in any case."""
    is_fused: bool = False
    """The optimizer is torch's fused one; matters for a traced model, others' trainers have one."""
    data_samples_per_s: float | None = None
    """That the loaders give all ranks together; None leaves the wait for data out."""

    def __post_init__(self) -> None:
        for option, value in (("--batch", self.batch), ("--micro-batch", self.micro_batch)):
            if value < 1:
                raise UsageError(f"{option} is {value}; it has to be at least 1")

    @property
    def precision(self) -> Precision:
        """Bytes of each number."""
        return find_precision(self.precision_name)

    @property
    def optimizer(self) -> Optimizer:
        """What is kept of each parameter."""
        return find_optimizer(self.optimizer_name)

    @property
    def optimizer_bytes(self) -> int:
        """Of a parameter: states and the master copy."""
        return state_bytes(self.optimizer, self.precision) + self.precision.master_bytes
