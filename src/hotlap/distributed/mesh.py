"""The mesh: how ranks are arranged, and which of them share what.

    pp       stages of the pipeline: each holds a part of the layers
    dp       replicas: each holds the whole, gradients are averaged
    shard    parts: parameters, gradients and optimizer state are cut over them (FSDP)
    tp       tensor parallel: each layer's matrices are cut over them

They are nested in this order, the innermost with neighbouring ranks: tensor parallel talks most and
stays within a node. `dp=2 shard=4` is hybrid sharding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from hotlap.errors import UsageError
from hotlap.wording import n_of

DIMENSIONS = ("pp", "dp", "shard", "tp")
Schedule = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """How many ranks go into each dimension; what is left of the world goes into dp."""

    pp: int = 1
    dp: int = 0
    """0 stands for all ranks that the other dimensions leave."""
    shard: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    """With tp: what lies between the cut layers is cut too, along the sequence."""
    schedule: Schedule = "1f1b"
    """Of the pipeline."""
    micro_batches: int = 0
    """Into which a pipeline cuts a batch; 0 stands for twice the stages."""
    shard_optimizer: bool = False
    """DDP: each replica keeps a part of the optimizer state, and weights stay whole (ZeRO-1)."""
    static_graph: bool = True
    """DDP: the same parameters take part in every step."""
    find_unused_parameters: bool = False
    """DDP: some parameters take no part in some steps. Looking for them costs time in each."""
    bucket_mib: int = 25
    """DDP: gradients are sent in parcels of this size."""
    sync_batchnorm: bool = False
    """Batch norms take their statistics over the batch of all ranks."""
    timeout_s: float = 600.0
    """After which a rank that waits for another one gives up; compiling may take minutes."""
    stall_s: float = 40.0
    """After which a rank ends the job that others wait for between two steps, or that gives no sign
    of life. In its first steps, validations and checkpoints it has `timeout_s`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh for a world of a certain size, seen from one rank."""

    settings: MeshSettings
    sizes: dict[str, int]
    coordinates: dict[str, int]

    @property
    def n_data(self) -> int:
        """How many ranks see different data."""
        return self.sizes["dp"] * self.sizes["shard"]

    @property
    def data_rank(self) -> int:
        """Which of them this one is."""
        return self.coordinates["dp"] * self.sizes["shard"] + self.coordinates["shard"]

    def __str__(self) -> str:
        return " ".join(f"{name}={self.sizes[name]}" for name in DIMENSIONS)


def parse_mesh(text: str, settings: MeshSettings) -> MeshSettings:
    """The settings with what `dp=4 shard=2` says in the place of their own."""
    given: dict[str, int] = {}
    for word in text.split():
        match = re.fullmatch(r"(\w+)=(\d+)", word)
        if match is None or match[1] not in DIMENSIONS or int(match[2]) < 1:
            raise UsageError(
                f"mesh: '{word}' was found; it takes words like dp=4 or tp=2, "
                f"of {', '.join(DIMENSIONS)}"
            )
        given[match[1]] = int(match[2])
    return replace(settings, **given)  # type: ignore[arg-type]


def lay_out(settings: MeshSettings, rank: int, world_size: int) -> Layout:
    """The place of a rank; the sizes have to make up the world."""
    others = settings.pp * settings.shard * settings.tp
    dp = settings.dp or max(1, world_size // others)
    sizes = {"pp": settings.pp, "dp": dp, "shard": settings.shard, "tp": settings.tp}
    if others * dp != world_size:
        raise UsageError(
            f"mesh: pp={settings.pp} dp={dp} shard={settings.shard} tp={settings.tp} is for "
            f"{n_of(others * dp, 'rank')}, and there are {world_size}"
        )
    _check(settings, sizes)
    return Layout(settings, sizes, _coordinates(rank, sizes))


def _coordinates(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    coordinates = {}
    for name in reversed(DIMENSIONS):
        rank, coordinates[name] = divmod(rank, sizes[name])
    return coordinates


def _check(settings: MeshSettings, sizes: dict[str, int]) -> None:
    if settings.shard_optimizer and max(sizes[name] for name in ("pp", "shard", "tp")) > 1:
        raise UsageError(
            "mesh.shard_optimizer: it goes with dp alone; `shard` cuts weights, gradients and "
            "optimizer state, and goes with all others"
        )
    if settings.sequence_parallel and sizes["tp"] == 1:
        raise UsageError("mesh.sequence_parallel: it needs tensor parallelism, and tp is 1")
