"""Adam's two moments of the gradient, and the direction they point to (Kingma and Ba, 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotlap.trainer.optimizers.bucket import Bucket, BucketOptimizer


def adam_direction(
    optimizer: BucketOptimizer, group: dict[str, Any], bucket: Bucket
) -> list[Tensor]:
    """Take the gradients into the moments; the mean over the root of the mean square, unbiased."""
    beta1, beta2 = group["betas"]
    n_steps = optimizer.count_steps(bucket)
    gradients = bucket.gradients
    means = optimizer.state_of(bucket, "exp_avg")
    squares = optimizer.state_of(bucket, "exp_avg_sq")
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)

    roots = torch._foreach_div(squares, [1 - beta2**n for n in n_steps])
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, group["eps"])
    directions = torch._foreach_div(means, [1 - beta1**n for n in n_steps])
    torch._foreach_div_(directions, roots)
    return list(directions)
