"""What lies in the host's memory instead of the GPU's, and the time it takes to get it there.

Optimizer   its state stays with the host, which updates: gradients go there, weights come back
            (Ren et al. 2021, https://arxiv.org/abs/2101.06840)
Activations what blocks keep goes out behind forward and comes back behind backward; the block that
            computes and the one on its way stay
"""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.planner.cluster import Gpus
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import in_flight_micro_batches, layer_kept
from hotlap.planner.stages import Stage, distinct, stage_params, stages
from hotlap.planner.training import Training

HOST_BYTES_PER_S = 117e9
"""That the processors of a node move in an update: Adam on 10 billion parameters, 30 bytes each,
took 2.57 s (table 4 of the paper above)."""


@dataclass(frozen=True, slots=True)
class HostBytes:
    """Beside one GPU; they add up."""

    optimizer: float = 0.0
    """Its state, and the gradients it is given."""
    activations: float = 0.0

    @property
    def total(self) -> float:
        """Both."""
        return self.optimizer + self.activations


def host_memory(model: Model, training: Training, layout: Layout) -> HostBytes:
    """Of the rank that needs most of it."""
    if not layout.offload and not layout.offload_activations:
        return HostBytes()
    model = model.under(layout.shard)
    ranks = [_rank(one, model, training, layout) for one in distinct(stages(model, layout))]
    return max(ranks, key=lambda one: one.total)


def _rank(stage: Stage, model: Model, training: Training, layout: Layout) -> HostBytes:
    optimizer = activations = 0.0
    if layout.offload:
        each = training.optimizer_bytes + training.precision.gradient_bytes
        optimizer = updated_params(stage, model, layout) * each
    if layout.offload_activations:
        in_flight = in_flight_micro_batches(stage, training, layout)
        activations = sent_bytes(stage, training, layout) * in_flight
    return HostBytes(optimizer, activations)


def updated_params(stage: Stage, model: Model, layout: Layout) -> float:
    """That one rank updates."""
    n = layout.shard * (layout.dp if layout.zero else 1)
    return stage_params(stage, model, layout).over(n, layout.ep)


def sent_bytes(stage: Stage, training: Training, layout: Layout) -> float:
    """Of activations, one micro-batch, one way."""
    return sum(layer_kept(one, layout, training.micro_batch) * n for one, n in stage.blocks)


def sending_s(stage: Stage, gpus: Gpus, training: Training, layout: Layout) -> float:
    """Of these, on the link to the host."""
    if not layout.offload_activations:
        return 0.0
    return sent_bytes(stage, training, layout) / (gpus.host_link_gb_per_s * 1e9)


def update_s(params: float, gpus: Gpus, training: Training) -> float:
    """An update by the host: across the link and back, and the processors' work, which all GPUs of
    a node share."""
    precision = training.precision
    crossing = precision.gradient_bytes + precision.weight_bytes
    moved = 2 * training.optimizer_bytes + crossing
    shared = min(gpus.n, gpus.per_node)
    return params * (crossing / (gpus.host_link_gb_per_s * 1e9) + moved * shared / HOST_BYTES_PER_S)
