"""An exponential moving average of a model's weights, which often validates better than they do.

Parameters are averaged, buffers (statistics of batch norms, tables) are copied. Averages are kept
in at least 32 bits: at a decay of 0.9999 the steps are too small for half precision. Of sharded
parameters each rank averages its shard. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from hotlap.errors import UsageError
from hotlap.trainer.optimizers.bucket import local


@dataclass(frozen=True, slots=True)
class EmaSettings:
    """How long the average remembers."""

    decay: float = 0.9999
    """What is kept of the average each time weights are added to it."""
    warmup: bool = True
    """The n-th time, keep at most (1 + n) / (10 + n): the first weights are forgotten sooner."""
    every: int = 1
    """Steps from one time to the next."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise UsageError(f"ema.decay is {self.decay}; it has to be at least 0 and below 1")
        if self.every < 1:
            raise UsageError(f"ema.every is {self.every}; it has to be at least 1")


class Ema:
    """The average, which starts as a copy of the model."""

    def __init__(self, model: nn.Module, settings: EmaSettings | None = None) -> None:
        self.settings = settings or EmaSettings()
        self.n_steps = 0
        self.n_averaged = 0
        self.averages = {name: _wide_copy(one) for name, one in _parameters(model).items()}
        self.buffers = {name: one.detach().clone() for name, one in model.named_buffers()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the weights to the average, if it is their turn; call it after each step."""
        self.n_steps += 1
        if self.n_steps % self.settings.every:
            return
        averages = _shards(self.averages)
        weights = _shards(_parameters(model))
        wide = [one.to(average.dtype) for one, average in zip(weights, averages, strict=True)]
        torch._foreach_lerp_(averages, wide, 1 - self._decay())
        _copy(list(self.buffers.values()), list(model.buffers()))
        self.n_averaged += 1

    def _decay(self) -> float:
        if not self.settings.warmup:
            return self.settings.decay
        return min(self.settings.decay, (1 + self.n_averaged) / (10 + self.n_averaged))

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights inside, and its own again after, bit for bit.

        Values are copied and tensors stay where they are, which compiled models rely on.
        """
        _reshard(model)
        tensors = _shards(_parameters(model)) + list(model.buffers())
        own = [one.detach().clone() for one in tensors]
        try:
            _copy(tensors, _shards(self.averages) + list(self.buffers.values()))
            yield
        finally:
            _reshard(model)
            _copy(tensors, own)

    def state_dict(self) -> dict[str, Any]:
        """All there is to save; the tensors are the average's own."""
        return {
            "n_steps": self.n_steps,
            "n_averaged": self.n_averaged,
            "averages": dict(self.averages),
            "buffers": dict(self.buffers),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        for key, mine in {"averages": self.averages, "buffers": self.buffers}.items():
            _refuse_other_names(key, mine, state[key])
            for name, tensor in mine.items():
                tensor.copy_(state[key][name])
        self.n_steps, self.n_averaged = int(state["n_steps"]), int(state["n_averaged"])


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def _wide_copy(parameter: Tensor) -> Tensor:
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return parameter.detach().to(dtype, copy=True)


@torch.no_grad()
def _shards(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [local(one) for one in tensors.values()]


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def _reshard(model: nn.Module) -> None:
    """Drop what FSDP has gathered: a forward without backward keeps it, and would use it again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _refuse_other_names(key: str, mine: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    if mine.keys() != found.keys():
        names = sorted(mine.keys() ^ found.keys())
        raise UsageError(
            f"the saved average is of another model: {key} differ in {', '.join(names[:3])}"
        )
