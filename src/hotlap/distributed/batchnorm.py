"""Batch norms whose statistics are those of the batch of all ranks (SyncBN).

On a GPU it is torch's own. That one refuses a CPU, and so does DDP with it inside (seen in 2.13:
torch/nn/modules/batchnorm.py, torch/nn/parallel/distributed.py), so there it is written out here:
slower, and the same numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def synchronise_norms(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """The model with its batch norms over all ranks of the group, which see different data."""
    if any(one.device.type != "cpu" for one in model.parameters()):
        return nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Synchronised):
            kind: Any = type(module)
            module.__class__ = _synchronised(kind)
            module.group = group
    return model


@functools.cache
def _synchronised(kind: type) -> type:
    return type(f"Sync{kind.__name__}", (_Synchronised, kind), {})


class _Synchronised(_BatchNorm):
    """Stands before a batch norm's own class; ranks have batches of one size."""

    group: dist.ProcessGroup

    def forward(self, input: Tensor) -> Tensor:
        """[batch, channel, …] to the same."""
        if not self.training:
            return super().forward(input)
        x = input.float()
        dims = [dim for dim in range(x.dim()) if dim != 1]
        shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
        mean = _MeanOverRanks.apply(x.mean(dims), self.group)
        x = x - mean.view(shape)
        variance = _MeanOverRanks.apply(x.square().mean(dims), self.group)
        if self.track_running_stats:
            n_ranks = dist.get_world_size(self.group)
            self._remember(mean, variance, n_ranks * input.numel() // input.shape[1])
        x = x * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            x = x * self.weight.view(shape) + self.bias.view(shape)
        return x.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, n: int) -> None:
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = variance * (n / max(n - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _MeanOverRanks(torch.autograd.Function):
    """Of a tensor; the losses of all ranks depend on it, so gradients are averaged too."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _mean(mine, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _mean(gradient, ctx.group), None


def _mean(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = mine.clone()
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)
