"""Gradient clipping over ranks: one norm for the whole model, whatever it is cut into."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, stages: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale gradients so that their norm is at most this; the norm before. Nothing waits for it.

    `stages` are the ranks that hold the other layers, where a pipeline cuts the model.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = norm(gradients)
    if stages is not None:
        squared = total.square()
        dist.all_reduce(squared, group=stages)
        total = squared.sqrt()
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    shards = [one.to_local() if isinstance(one, DTensor) else one for one in gradients]
    if shards:
        torch._foreach_mul_(shards, scale)
    return total


def norm(gradients: list[Tensor]) -> Tensor:
    """Of all gradients together; those that are cut over ranks are taken as a whole."""
    if not gradients:
        return torch.zeros(())
    whole = [one.detach() for one in gradients if not isinstance(one, DTensor)]
    norms = list(torch._foreach_norm(whole, 2, torch.float32)) if whole else []
    for gradient in gradients:
        if isinstance(gradient, DTensor):
            norms.append(torch.linalg.vector_norm(gradient.detach().float()).full_tensor())
    return torch.linalg.vector_norm(torch.stack(norms))
