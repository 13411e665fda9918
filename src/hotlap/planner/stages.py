"""Which layers each rank of a pipeline holds; without one, a single stage holds them all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from hotlap.planner.layers import Layer, Model
from hotlap.planner.layout import Layout


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one rank, equal neighbours as one with their number."""

    index: int
    layers: tuple[tuple[Layer, int], ...]
    is_first: bool
    is_last: bool

    @property
    def blocks(self) -> tuple[tuple[Layer, int], ...]:
        """Without what stands before and after the blocks."""
        return self.layers[int(self.is_first) : len(self.layers) - self.is_last]

    @property
    def ends(self) -> tuple[Layer, ...]:
        """What stands before and after the blocks."""
        return tuple(layer for layer, _ in self.layers[:1] * self.is_first) + tuple(
            layer for layer, _ in self.layers[-1:] * self.is_last
        )


def stages(model: Model, layout: Layout) -> tuple[Stage, ...]:
    """Blocks are shared out as evenly as they go, in order; the first has the stem.

    Where they do not divide, the last part, which has the output layer, is the first to have one
    less, then the first part, as large models are cut (Llama 3's 126 blocks over 16 ranks).
    """
    return _stages(model, layout.pp, layout.v)


@lru_cache(maxsize=512)
def _stages(model: Model, pp: int, v: int) -> tuple[Stage, ...]:
    n_parts = pp * v
    borders = _borders(len(model.blocks), n_parts)
    made = []
    for rank in range(pp):
        held: list[Layer] = [model.stem] if rank == 0 else []
        for part in range(rank, n_parts, pp):
            held += model.blocks[borders[part] : borders[part + 1]]
        if rank == pp - 1:
            held.append(model.head)
        layers = tuple((layer, len(list(same))) for layer, same in groupby(held))
        made.append(Stage(rank, layers, rank == 0, rank == pp - 1))
    return tuple(made)


def _borders(n_blocks: int, n_parts: int) -> list[int]:
    """Where each part begins, and the end."""
    most = -(-n_blocks // n_parts)
    n_missing = most * n_parts - n_blocks
    less = [n_parts - 1, 0][:n_missing]
    n_inner = n_missing - len(less)
    less += [1 + (2 * i + 1) * (n_parts - 2) // (2 * n_inner) for i in range(n_inner)]
    sizes = [most - (part in less) for part in range(n_parts)]
    return [sum(sizes[:part]) for part in range(n_parts + 1)]


@lru_cache(maxsize=512)
def distinct(every: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages that are alike in what they hold, once each: the first, the last, some between."""
    seen: dict[tuple[object, ...], Stage] = {}
    for stage in every:
        seen.setdefault((stage.is_first, stage.is_last, stage.layers), stage)
    return tuple(seen.values())


@dataclass(frozen=True, slots=True)
class Params:
    """On one rank of tensor and expert parallelism, before any sharding."""

    shared: float
    """That all ranks with other data have too."""
    expert: float
    """Of the experts of this rank, which only the ranks of other expert groups have."""

    @property
    def total(self) -> float:
        """Both."""
        return self.shared + self.expert

    def over(self, n: int, ep: int) -> float:
        """That each of n ranks holds which share them out; ep of them have other experts anyway."""
        return self.shared / n + self.expert / max(1.0, n / ep)


def params_of(layer: Layer, layout: Layout) -> Params:
    """Of a layer."""
    expert = layer.n_params_expert / (layout.tp * layout.ep)
    return Params(layer.n_params + layer.n_params_cut / layout.tp, expert)


def stage_params(stage: Stage, model: Model, layout: Layout) -> Params:
    """Of a rank of this stage."""
    each = [(params_of(layer, layout), n) for layer, n in stage.layers]
    shared = sum(one.shared * n for one, n in each)
    # The output layer is the embedding where one rank holds both; a pipeline needs it twice.
    tied = model.tied_params / layout.tp if layout.pp == 1 else 0.0
    return Params(shared - tied, sum(one.expert * n for one, n in each))
