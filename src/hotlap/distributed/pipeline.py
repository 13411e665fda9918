"""The pipeline: layers over ranks, with micro-batches under way in all of them.

    gpipe         all forwards, then all backwards: simple, keeps the most activations
    1f1b          one forward, one backward in turns: fewer activations kept
    interleaved   each rank holds two stages apart from one another: shorter waits at the ends

Schedules and the sending between stages are torch's (torch.distributed.pipelining).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from hotlap.distributed.mesh import Layout
from hotlap.errors import UsageError

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of the output and the targets of a micro-batch."""

STAGES_A_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


def n_micro_batches(layout: Layout) -> int:
    """Into which a batch is cut: twice the ranks keeps most of them busy."""
    return layout.settings.micro_batches or 2 * layout.sizes["pp"]


def cut(model: Any, layout: Layout) -> dict[int, nn.Module]:
    """The stages of this rank, by their number; blocks are shared out as evenly as they go."""
    if not hasattr(model, "stage"):
        raise UsageError(
            f"mesh.pp: {type(model).__name__} cannot be cut into stages; the reference models can"
        )
    n_ranks = layout.sizes["pp"]
    n_stages = n_ranks * STAGES_A_RANK[layout.settings.schedule]
    n_blocks = len(model.blocks())
    if n_blocks < n_stages:
        raise UsageError(f"mesh.pp: {n_blocks} blocks cannot be cut into {n_stages} stages")
    borders = [round(i * n_blocks / n_stages) for i in range(n_stages + 1)]
    return {
        i: model.stage(borders[i], borders[i + 1], i == 0, i == n_stages - 1)
        for i in range(layout.coordinates["pp"], n_stages, n_ranks)
    }


def merged(stages: list[nn.Module]) -> nn.Module:
    """One module with the parts of several stages, under the names they have in the model."""
    whole = _Merged(stages)
    for stage in stages:
        _adopt(whole, stage)
    return whole


class _Merged(nn.Module):
    """What optimizer and checkpoints see of several stages; it is not called."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self._stages = tuple(stages)  # in a tuple they are no parts of it

    def blocks(self) -> list[nn.Module]:
        """The repeated blocks of all stages."""
        return [block for stage in self._stages for block in cast(Any, stage).blocks()]


def _adopt(whole: nn.Module, part: nn.Module) -> None:
    """Take in the tensors and modules of another one; what both have becomes one of both."""
    for name, parameter in part.named_parameters(recurse=False):
        whole.register_parameter(name, parameter)
    for name, buffer in part.named_buffers(recurse=False):
        whole.register_buffer(name, buffer)
    for name, module in part.named_children():
        there = getattr(whole, name, None)
        if there is not None:
            both = nn.Module()
            _adopt(both, there)
            _adopt(both, module)
            module = both
        whole.add_module(name, module)


class Pipeline:
    """Runs a batch through the stages of all ranks, forward and back."""

    def __init__(
        self, stages: dict[int, nn.Module], layout: Layout, mesh: DeviceMesh, device: torch.device
    ) -> None:
        self.n_micro_batches = n_micro_batches(layout)
        self._n_stages = layout.sizes["pp"] * len(stages)
        self.is_first = 0 in stages
        self.is_last = self._n_stages - 1 in stages
        self._loss: Loss = _no_loss
        self._schedule_class = {
            "gpipe": ScheduleGPipe,
            "1f1b": Schedule1F1B,
            "interleaved": ScheduleInterleaved1F1B,
        }[layout.settings.schedule]
        self._stages = [
            PipelineStage(part, i, self._n_stages, device, group=mesh["pp"].get_group())
            for i, part in stages.items()
        ]
        self._schedule = self._schedule_class(
            self._stages if len(self._stages) > 1 else self._stages[0],
            self.n_micro_batches,
            loss_fn=lambda output, targets: self._loss(output, targets),
            scale_grads=False,
        )

    def step(self, inputs: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Tensor] | None:
        """Forward and backward of a batch; on the last stage its output and its loss.

        Torch calls the loss once more to learn the shapes: it is to be free of side effects.
        """
        self._check(inputs)
        self._loss = loss
        losses: list[Tensor] = []
        given = {"target": targets, "losses": losses} if self.is_last else {}
        output = self._schedule.step(*((inputs,) if self.is_first else ()), **given)
        return (output, torch.stack(losses).sum()) if self.is_last else None

    def evaluate(self, inputs: Tensor) -> Tensor | None:
        """Forward of a batch alone; on the last stage its output."""
        self._check(inputs)
        self._loss = _no_loss
        given = {"target": inputs} if self.is_last else {}
        output = self._schedule.eval(*((inputs,) if self.is_first else ()), **given)
        return output if self.is_last else None

    def _check(self, inputs: Tensor) -> None:
        if inputs.shape[0] % self.n_micro_batches:
            raise UsageError(
                f"mesh.micro_batches is {self.n_micro_batches}; it has to divide the batch, "
                f"which is {inputs.shape[0]}"
            )


def _no_loss(output: Tensor, targets: Tensor) -> Tensor:
    return output.sum()
