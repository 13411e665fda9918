"""How often a rank takes part in each kind of collective in one step."""

from __future__ import annotations

from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.stages import Stage, stages
from hotlap.planner.training import Training


def collectives(model: Model, training: Training, layout: Layout) -> dict[str, int]:
    """Of a rank of the first stage; kinds that do not occur are left out."""
    stage = stages(model, layout)[0]
    n_micro = training.batch // (layout.n_data * training.micro_batch)
    n_sharded = 1 if layout.keeps_gathered else n_micro
    counts = {
        "all_gather": _gathers(stage, layout) * n_sharded,
        "reduce_scatter": _scatters(stage, layout) * n_sharded,
        "all_reduce": _syncs(stage, layout) * n_micro,
        "all_to_all": _all_to_alls(stage, layout) * n_micro,
        # Each part sends its activations on, and all but the first its gradients back.
        "send": (2 * layout.v - 1) * n_micro if layout.pp > 1 else 0,
    }
    if layout.sp:
        # Each sum is a reduce-scatter here and an all-gather at the next layer.
        counts["all_gather"] += counts["all_reduce"]
        counts["reduce_scatter"] += counts["all_reduce"]
        counts["all_reduce"] = 0
    if layout.dp > 1 and layout.shard == 1:
        counts["gradients in buckets"] = 1
    return {name: n for name, n in counts.items() if n}


def _blocks(stage: Stage) -> int:
    return sum(n for _, n in stage.blocks)


def _gathers(stage: Stage, layout: Layout) -> int:
    """FSDP: each block forward and again backward; the rest is one unit, kept after forward."""
    if layout.shard == 1:
        return 0
    return _blocks(stage) * (2 if layout.reshard else 1) + 1


def _scatters(stage: Stage, layout: Layout) -> int:
    return _blocks(stage) + 1 if layout.shard > 1 else 0


def _syncs(stage: Stage, layout: Layout) -> int:
    """Tensor parallel: each sum forward has one backward; forward's are made again with it."""
    if layout.tp == 1:
        return 0
    passes = 3 if layout.recompute == "full" else 2
    return sum(layer.n_tensor_syncs * n for layer, n in stage.blocks) * passes


def _all_to_alls(stage: Stage, layout: Layout) -> int:
    if layout.ep == 1:
        return 0
    with_experts = sum(n for layer, n in stage.blocks if layer.all_to_all_bytes)
    return 4 * with_experts * (2 if layout.recompute == "full" else 1)
