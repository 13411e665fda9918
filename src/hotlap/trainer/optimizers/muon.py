"""Muon for hidden matrices and AdamW for all else, in one optimizer (Jordan et al., 2024).

For a matrix W of A rows and B columns, gradient G, momentum M and weight decay d:

    M = momentum * M + G
    O = orthogonal(G + momentum * M)      with Nesterov, else orthogonal(M)
    W = W - lr * (0.2 * sqrt(max(A, B)) * O + d * W)

`orthogonal` moves all singular values close to 1, by five steps of Newton and Schulz. The factor
gives the update the root mean square that AdamW's has (Liu et al., 2025), so that one rate and one
weight decay serve both kinds of groups. The kernel of a convolution is a matrix with a row for each
output channel.

torch.optim.Muon (from 2.9) is not used: it refuses kernels of convolutions, knows no AdamW groups,
rounds to bfloat16 also where that is slow or missing, and goes one matrix at a time.
https://kellerjordan.github.io/posts/muon/ and https://arxiv.org/abs/2502.16982
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hotlap.trainer.optimizers.bucket import Bucket, BucketOptimizer
from hotlap.trainer.optimizers.moments import adam_direction

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic: steep at 0, at the price of singular values that end between 0.7 and 1.2."""
N_ITERATIONS = 5
SMALLEST_NORM = 1e-7
RMS_OF_ADAMW = 0.2
BATCH_ELEMENTS = 2**26
"""Matrices of one shape are orthogonalised together, up to this size: whole ones, also of FSDP."""


class Muon(BucketOptimizer):
    """Groups with `hidden=True` are updated by Muon, all others by AdamW."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        hidden: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "hidden": hidden,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], bucket: Bucket) -> None:
        """One step of a bucket."""
        weights = bucket.weights
        if group["hidden"]:
            changes = self._orthogonal_changes(group, bucket)
        else:
            changes = adam_direction(self, group, bucket)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, changes, alpha=-group["lr"])

    def _orthogonal_changes(self, group: dict[str, Any], bucket: Bucket) -> list[Tensor]:
        gradients = bucket.gradients
        changes = momenta = self.state_of(bucket, "momentum_buffer")
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        if group["nesterov"]:
            changes = list(torch._foreach_add(gradients, momenta, alpha=group["momentum"]))
        return orthogonal_shards(bucket, changes)


def orthogonal_shards(bucket: Bucket, shards: list[Tensor]) -> list[Tensor]:
    """Shards of whole tensors, each made orthogonal as one matrix and scaled as AdamW's are.

    Every rank works on whole matrices and keeps its shard.
    """
    results = list(shards)
    for batch in _batches_of_one_shape(bucket.params):
        params = [bucket.params[i] for i in batch]
        wholes = [
            bucket.gather(param, shards[i].to(_working_dtype(param)))
            for i, param in zip(batch, params, strict=True)
        ]
        matrices = newton_schulz(torch.stack([whole.flatten(1) for whole in wholes]))
        matrices *= RMS_OF_ADAMW * math.sqrt(max(matrices.shape[1:]))
        for i, param, matrix in zip(batch, params, matrices, strict=True):
            results[i] = bucket.keep_shard(matrix.view(param.shape)).to(param.dtype)
    return results


def _batches_of_one_shape(params: list[Tensor]) -> Iterator[list[int]]:
    """Positions of the parameters that are worked on together."""
    alike: dict[torch.Size, list[int]] = {}
    for i, param in enumerate(params):
        alike.setdefault(param.shape, []).append(i)
    for shape, positions in alike.items():
        n = max(1, BATCH_ELEMENTS // max(1, shape.numel()))
        yield from (positions[start : start + n] for start in range(0, len(positions), n))


def _working_dtype(param: Tensor) -> torch.dtype:
    """What Newton and Schulz's steps are made in: bfloat16 is enough, where it is fast."""
    is_small = param.dtype != torch.float64
    if is_small and param.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.promote_types(param.dtype, torch.float32)


def newton_schulz(matrices: Tensor) -> Tensor:
    """A stack of matrices with the same singular vectors and singular values close to 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(N_ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT.contiguous() if is_tall else x
