"""Loss and accuracy, summed on the device: nothing in the step waits for them.

Sums are read when a line of progress is due. The first step whose loss is no number is remembered
on the device too, so that it can be named then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hotlap.data.sampling import IGNORED

TOP = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What was seen since the last reading, over all ranks."""

    n: int
    """Targets: images, or tokens."""
    loss: float
    top1: float
    top5: float


class Metrics:
    """Sums over steps, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)
        self._bad_step = torch.zeros((), dtype=torch.int64, device=device)

    def add_loss(self, step: int, loss_sum: Tensor, n: Tensor | int) -> None:
        """Of one backward: the sum over its targets."""
        loss = loss_sum.detach()
        self._sums[0] += n
        self._sums[1] += loss
        is_first = ~torch.isfinite(loss) & (self._bad_step == 0)
        self._bad_step = torch.where(is_first, step, self._bad_step)

    def add_accuracy(self, logits: Tensor, targets: Tensor) -> None:
        """How often the right class was the first, and among the first five."""
        best = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices
        hits = (best == targets.unsqueeze(-1)) & (targets != IGNORED).unsqueeze(-1)
        self._sums[2] += hits[..., 0].sum()
        self._sums[3] += hits.sum()

    def read(self, group: dist.ProcessGroup | None = None) -> Figures:
        """The figures since the last reading; this waits for the device."""
        sums = self._sums.clone()
        if group is not None:
            dist.all_reduce(sums, group=group)
        self._sums.zero_()
        n, loss, top1, top5 = sums.tolist()
        many = max(n, 1.0)
        return Figures(int(n), loss / many, top1 / many, top5 / many)

    def bad_step(self, group: dist.ProcessGroup | None = None) -> int:
        """A step whose loss was no number, the first of its rank; 0 if there is none. It waits."""
        bad = self._bad_step.clone()
        if group is not None:
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=group)
        return int(bad)
