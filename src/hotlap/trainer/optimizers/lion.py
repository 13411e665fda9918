"""Lion: the sign of an interpolated momentum (Chen et al., 2023).

For weights w, gradient g, momentum m and weight decay d:

    w = w - lr * (sign(beta1 * m + (1 - beta1) * g) + d * w)
    m = beta2 * m + (1 - beta2) * g

Each weight moves by the same amount, so that the rate is 3 to 10 times smaller than Adam's and the
weight decay that much larger. One tensor of state a parameter, where Adam has two.
https://arxiv.org/abs/2302.06675
"""

from __future__ import annotations

from typing import Any

import torch

from hotlap.trainer.optimizers.bucket import Bucket, BucketOptimizer


class Lion(BucketOptimizer):
    """Evolved sign momentum."""

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], bucket: Bucket) -> None:
        """One step of a bucket."""
        beta1, beta2 = group["betas"]
        weights, gradients = bucket.weights, bucket.gradients
        momenta = self.state_of(bucket, "exp_avg")
        signs = torch._foreach_lerp(momenta, gradients, 1 - beta1)
        torch._foreach_sign_(signs)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, signs, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, gradients, 1 - beta2)
