"""LAMB: Adam with a rate for each layer (You et al., 2020).

For each layer, with weights w, Adam's direction r and weight decay d:

    u = r + d * w
    w = w - lr * |w| / |u| * u

A layer with weights or update of norm 0 takes a rate of 1, and so does each layer of a group with
`adapt=False`: norms and biases, as in the authors' own BERT. The paper's bounds of |w| are left
out, as the authors leave them out. The clipping of the whole gradient is the training loop's.
https://arxiv.org/abs/1904.00962
"""

from __future__ import annotations

from typing import Any

import torch

from hotlap.trainer.optimizers.bucket import Bucket, BucketOptimizer, one_where_zero
from hotlap.trainer.optimizers.moments import adam_direction


class Lamb(BucketOptimizer):
    """Layer-wise adaptive moments for batch training."""

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], bucket: Bucket) -> None:
        """One step of a bucket."""
        weights = bucket.weights
        changes = adam_direction(self, group, bucket)
        torch._foreach_add_(changes, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            of_weights, of_changes = bucket.whole_norms(weights), bucket.whole_norms(changes)
            rates = one_where_zero(of_weights / of_changes, of_weights, of_changes)
            torch._foreach_mul_(changes, rates.unbind())
        torch._foreach_add_(weights, changes, alpha=-group["lr"])
