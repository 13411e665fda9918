"""The trained weights as one safetensors file, whole, for anybody to load."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from hotlap.errors import UsageError
from hotlap.trainer.build import Training

NAME = "weights.safetensors"


def whole_weights(t: Training) -> dict[str, Tensor]:
    """All weights by name on rank 0, put together of what ranks hold; called by all of them."""
    # With stages each rank has other layers, and the first of every stage has to know its own.
    options = StateDictOptions(full_state_dict=True, cpu_offload=t.pipeline is None)
    weights = get_model_state_dict(t.bare, options=options)
    # One tensor under two names is no matter to torch; safetensors wants them apart.
    own = {name: one.detach().cpu().contiguous().clone() for name, one in weights.items()}
    if t.pipeline is None:
        return own
    is_first = all(t.layout.coordinates[name] == 0 for name in ("dp", "shard", "tp"))
    everybody: list[dict[str, Tensor]] | None = None
    if t.launch.rank == 0:
        everybody = [{}] * t.launch.world_size
    dist.gather_object(own if is_first else {}, everybody, group=t.cpu_group)
    return {name: one for part in everybody or [] for name, one in part.items()}


def export_weights(t: Training, folder: Path) -> None:
    """Write them, the averaged ones where there are some; called by all ranks."""
    averaged = t.average.swapped(t.bare) if t.average is not None else contextlib.nullcontext()
    with averaged:
        whole = whole_weights(t)
    if t.launch.rank != 0:
        return
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise UsageError(
            "the weights were not exported: the package safetensors is not installed; the last "
            "checkpoint holds them"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (NAME + ".partial")
    save_file(whole, partial, metadata={"format": "pt"})
    os.replace(partial, folder / NAME)
