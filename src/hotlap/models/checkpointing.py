"""Activation checkpointing: blocks keep their input alone and run once more in backward.

Memory for time: one more forward a step. Losses, gradients, dropout and batch statistics are what
they would be without. Works in place and leaves all names as they are: a block's class becomes a
subclass of it with another `forward`. An attribute `forward` of the instance would not do: in a
deep copy it would still run the original's weights.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.errors import UsageError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def checkpoint_blocks(model: nn.Module, every: int = 1) -> int:
    """Checkpoint every n-th of the model's repeated blocks; how many that were.

    The blocks are those of `blocks()`. A model without it has those of the class that fills its
    longest list of modules. Comes before sharding and compiling.
    """
    if every < 1:
        raise UsageError(f"every is {every}; it has to be at least 1")
    chosen = _repeated_blocks(model)[::every]
    for block in chosen:
        kind: Any = type(block)
        if not issubclass(kind, _Checkpointed):
            block.__class__ = _checkpointed(kind)
    return len(chosen)


class _Checkpointed(nn.Module):
    """Stands before a block's own class, whose `forward` it runs, now and again in backward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        more: dict[str, Any] = {}
        # In a compiled program the statistics are no part of what is computed again.
        norms = [] if torch.compiler.is_compiling() else _norms_with_statistics(self)
        if norms:
            more["context_fn"] = functools.partial(_contexts, norms)
        return checkpoint(super().forward, *args, use_reentrant=False, **more, **kwargs)


@functools.cache
def _checkpointed(kind: type) -> type:
    return type(f"Checkpointed{kind.__name__}", (_Checkpointed, kind), {})


def _norms_with_statistics(block: nn.Module) -> list[nn.Module]:
    norms = (part for part in block.modules() if isinstance(part, BATCH_NORMS))
    return [norm for norm in norms if norm.training and norm.track_running_stats]


def _contexts(norms: list[nn.Module]) -> tuple[Any, Any]:
    """Around the first run and around the second one."""
    return contextlib.nullcontext(), _statistics_untouched(norms)


@contextlib.contextmanager
def _statistics_untouched(norms: list[nn.Module]) -> Iterator[None]:
    """Let norms gather into copies: each batch counts once, in the first run.

    They have to gather all the same: backward wants as many tensors as the first run kept.
    """
    kept = [(norm, name, getattr(norm, name)) for norm in norms for name in STATISTICS]
    for norm, name, statistic in kept:
        setattr(norm, name, statistic.clone())
    try:
        yield
    finally:
        for norm, name, statistic in kept:
            setattr(norm, name, statistic)


def _repeated_blocks(model: nn.Module) -> list[nn.Module]:
    blocks = getattr(model, "blocks", None)
    if callable(blocks) and not isinstance(blocks, nn.Module):
        return list(blocks())
    rows = [row for row in model.modules() if _is_row_of_blocks(row)]
    if not rows:
        raise UsageError(
            f"{type(model).__name__} has no blocks to checkpoint: neither a method blocks() nor an "
            "nn.ModuleList or nn.Sequential of two or more blocks of one class"
        )
    kind = type(next(max(rows, key=len).children()))
    return [block for row in rows for block in row.children() if type(block) is kind]


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Whether it lists modules of one class, made of modules: single layers are too small."""
    children = list(module.children())
    return (
        isinstance(module, (nn.ModuleList, nn.Sequential))
        and len(children) > 1
        and len({type(child) for child in children}) == 1
        and all(next(child.children(), None) is not None for child in children)
    )
