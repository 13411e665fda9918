"""LARS: SGD with momentum and a rate for each layer (You, Gitman and Ginsburg, 2017).

For each layer, with weights w, gradient g, velocity v and weight decay d:

    rate = trust_coefficient * |w| / (|g| + d * |w|)
    v    = momentum * v + lr * rate * (g + d * w)
    w    = w - v

The learning rate is inside the velocity, as in the paper: after a drop of it the velocity still
carries the old one for some steps. A layer with weights or gradients of norm 0 takes a rate of 1,
and so does each layer of a group with `adapt=False`: norms and biases, as is the practice.
https://arxiv.org/abs/1708.03888
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotlap.trainer.optimizers.bucket import Bucket, BucketOptimizer, one_where_zero


class Lars(BucketOptimizer):
    """Layer-wise adaptive rate scaling."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], bucket: Bucket) -> None:
        """One step of a bucket."""
        weights, gradients = bucket.weights, bucket.gradients
        velocities = self.state_of(bucket, "momentum_buffer")
        changes = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            torch._foreach_mul_(changes, _rates(group, bucket, weights, gradients).unbind())
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, changes, alpha=group["lr"])
        torch._foreach_sub_(weights, velocities)


def _rates(
    group: dict[str, Any], bucket: Bucket, weights: list[Tensor], gradients: list[Tensor]
) -> Tensor:
    of_weights, of_gradients = bucket.whole_norms(weights), bucket.whole_norms(gradients)
    of_changes = of_gradients + group["weight_decay"] * of_weights
    rates = group["trust_coefficient"] * of_weights / of_changes
    return one_where_zero(rates, of_weights, of_gradients)
