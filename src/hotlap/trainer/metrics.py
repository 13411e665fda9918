"""Loss and accuracy of many steps: a step costs next to nothing, and waits for nothing.

Losses are kept on the device and read together, when a line of progress is due or their place is
full. The first step whose loss is no number is found then, too. Accuracy is counted where the loop
asks for it: in all of a validation, of a training in the steps that are told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hotlap.data.sampling import IGNORED

TOP = 5
CAPACITY = 1024
"""Losses that are kept before they are read: a wait every so many backwards costs nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was seen since the last reading, over all ranks."""

    n: int
    """Targets: images, or tokens."""
    loss: float
    top1: float
    """Like `top5`, of the targets whose accuracy was counted; no number where none were."""
    top5: float


class Metrics:
    """What was seen since the last reading."""

    def __init__(self, device: torch.device, is_memory_reused: bool = False) -> None:
        """`is_memory_reused`: each loss lies where the one before lay, as CUDA graphs have it."""
        self._device = device
        self._is_memory_reused = is_memory_reused
        self._kept: list[tuple[int, Tensor, int]] = []
        """Losses, each with its step, and what makes a sum over targets of it."""
        self._loss = 0.0
        """The sum of those that were read."""
        self._bad_step = 0
        self._n_known = 0
        """Targets that were counted on the host."""
        self._counts = torch.zeros(4, dtype=torch.float64, device=device)
        """Targets counted on the device; of some, how many were looked at, and hits by 1 and 5."""
        self._has_counts = False
        """Whether anything was; to read zeros costs as much as to read figures."""

    def add_loss(self, step: int, loss: Tensor, n: Tensor | int, is_mean: bool = False) -> None:
        """Of one backward: the sum over its n targets; or their mean, where the host knows n."""
        kept = loss.detach().clone() if self._is_memory_reused else loss.detach()
        self._kept.append((step, kept, int(n) if is_mean else 1))
        if isinstance(n, Tensor):
            self._counts[0] += n
            self._has_counts = True
        else:
            self._n_known += n
        if len(self._kept) == CAPACITY:
            self._read_losses()

    def add_accuracy(self, logits: Tensor, targets: Tensor) -> None:
        """How often the right class was the first, and among the first five."""
        best = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices
        counts = (targets != IGNORED).unsqueeze(-1)
        hits = (best == targets.unsqueeze(-1)) & counts
        self._counts[1:] += torch.stack((counts.sum(), hits[..., 0].sum(), hits.sum()))
        self._has_counts = True

    def _read_losses(self) -> None:
        """Bring the losses to the host; this waits for the device."""
        if not self._kept:
            return
        losses = torch.stack([loss for _, loss, _ in self._kept]).tolist()
        for (step, _, factor), loss in zip(self._kept, losses, strict=True):
            if not (self._bad_step or math.isfinite(loss)):
                self._bad_step = step
            self._loss += loss * factor
        self._kept.clear()

    def read(self, group: dist.ProcessGroup | None = None) -> Figures:
        """The figures since the last reading; this waits for the device."""
        self._read_losses()
        sums = [self._loss, self._n_known, *self._read_counts()]
        if group is not None:
            everybody = torch.tensor(sums, dtype=torch.float64, device=self._device)
            dist.all_reduce(everybody, group=group)
            sums = everybody.tolist()
        self._loss, self._n_known = 0.0, 0
        loss, n_known, n_counted, looked_at, top1, top5 = sums
        n = n_known + n_counted
        shares = [hits / looked_at if looked_at else math.nan for hits in (top1, top5)]
        return Figures(int(n), loss / max(n, 1.0), *shares)

    def _read_counts(self) -> list[float]:
        if not self._has_counts:
            return [0.0] * len(self._counts)
        counts: list[float] = self._counts.tolist()
        self._counts.zero_()
        self._has_counts = False
        return counts

    def bad_step(self, group: dist.ProcessGroup | None = None) -> int:
        """A step whose loss was no number, the first of its rank; 0 if there is none. It waits."""
        self._read_losses()
        if group is None:
            return self._bad_step
        bad = torch.tensor(self._bad_step, device=self._device)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=group)
        return int(bad)
