"""What is learnt: the loss of a batch, and what of it is counted.

Losses are sums over targets. Divided by the number of targets of all micro-batches on all ranks
they give the gradient of one large batch, however it was cut.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hotlap.data.sampling import IGNORED


def loss_sum(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy, summed over all targets that count; in fp32, whatever the model computes in.

    Targets are classes, or for mixed images a probability for each class.
    """
    logits = logits.float()
    if targets.is_floating_point():
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
    return F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        reduction="sum",
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
