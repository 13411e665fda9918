"""What is learnt: the loss of a batch, and what of it is counted.

The sum of losses over targets, divided by the number of targets of all micro-batches on all ranks,
gives the gradient of one large batch, however it was cut. Where all targets count, and so their
number is known, a mean is as good as a sum: mostly it is the loss of the step already.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hotlap.data.sampling import IGNORED

Reduction = Literal["sum", "mean"]


def loss_of(
    logits: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    reduction: Reduction = "sum",
) -> Tensor:
    """Cross-entropy over all targets that count; in fp32, whatever the model computes in.

    Targets are classes, or for mixed images a probability for each class.
    """
    logits = logits.float()
    if targets.is_floating_point():
        return F.cross_entropy(
            logits, targets, reduction=reduction, label_smoothing=label_smoothing
        )
    return F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        reduction=reduction,
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )


def n_targets(targets: Tensor, may_be_padded: bool) -> Tensor | int:
    """How many of them count; counted on the device where some may be padding."""
    if targets.is_floating_point():
        return targets.shape[0]
    return (targets != IGNORED).sum() if may_be_padded else targets.numel()


def hard_targets(targets: Tensor) -> Tensor:
    """Classes, also of mixed images: the one with the greater part."""
    return targets.argmax(dim=-1) if targets.is_floating_point() else targets


def total(counts: list[Tensor | int], group: object, n_ranks: int) -> Tensor | int:
    """The targets of all micro-batches on all ranks; without waiting for the device."""
    mine = sum(counts)
    if n_ranks == 1:
        return mine
    if isinstance(mine, Tensor):
        everybody = mine.clone().to(torch.float32)
        torch.distributed.all_reduce(everybody, group=group)
        return everybody
    return mine * n_ranks
