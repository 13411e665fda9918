"""The work of a step at nominal rates: what a calibration then makes seconds of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hotlap.planner.cluster import Gpus
from hotlap.planner.counting import Counter, StageWork
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.stages import Stage, distinct, stages
from hotlap.planner.training import Training


@dataclass(frozen=True, slots=True)
class StepWork:
    """Of one step, on the ranks of each kind of stage."""

    stages: tuple[StageWork, ...]
    n_alike: tuple[int, ...]
    """Stages of each kind."""
    n_micro: int
    pp: int
    v: int
    is_zero_bubble: bool
    overlaps: bool
    overlaps_tensor: bool
    is_compiled: bool
    is_traced: bool
    compiled_share: float
    """Of its kernels, what a compiler would not make part of another one."""
    generation: str
    rate: str
    convolution_rate: str
    peak_flops_per_s: float
    model_flops: float
    """Of the whole step, on all GPUs, forward and backward without recomputation."""
    hardware_flops: float
    """With recomputation."""
    n_gpus: int
    n_nodes: int

    @property
    def is_eager(self) -> bool:
        """Whether every operation is known to be a kernel of its own."""
        return self.is_traced and not self.is_compiled


def work_of(model: Model, gpus: Gpus, training: Training, layout: Layout) -> StepWork:
    """Count everything that one step does."""
    model = model.under(layout.shard)
    every = stages(model, layout)
    kinds = distinct(every)
    counter = Counter(model, gpus, training, layout)
    flops = _flops(model)
    again = {"none": 0.0, "selective": flops.attention, "full": flops.blocks}
    return StepWork(
        stages=tuple(counter.stage(kind) for kind in kinds),
        n_alike=tuple(sum(_alike(kind, stage) for stage in every) for kind in kinds),
        n_micro=training.batch // (layout.n_data * training.micro_batch),
        pp=layout.pp,
        v=layout.v,
        is_zero_bubble=layout.schedule == "zero-bubble",
        overlaps=training.overlaps,
        overlaps_tensor=training.overlaps_tensor,
        is_compiled=training.is_compiled,
        is_traced=model.is_traced,
        compiled_share=model.compiled_share,
        generation=gpus.generation,
        rate=training.precision.rate,
        convolution_rate=training.precision.convolution_rate or training.precision.rate,
        peak_flops_per_s=counter.peak,
        model_flops=3 * flops.whole * training.batch,
        hardware_flops=(3 * flops.whole + again[layout.recompute]) * training.batch,
        n_gpus=gpus.n,
        n_nodes=-(-gpus.n // gpus.per_node),
    )


def _alike(one: Stage, other: Stage) -> bool:
    ends = (one.is_first, one.is_last) == (other.is_first, other.is_last)
    return ends and one.layers == other.layers


@dataclass(frozen=True, slots=True)
class _Flops:
    """Of one sample, forward."""

    whole: float
    attention: float
    blocks: float


@lru_cache(maxsize=64)
def _flops(model: Model) -> _Flops:
    attention = sum(n * a.flops for layer, n in model.groups() for a in layer.attentions)
    whole = model.flops
    return _Flops(whole, attention, whole - model.head.flops - model.stem.flops)
