"""A model over the ranks of a mesh: tensor parallel first, then sharded or replicated.

The order is that of nesting. Tensor parallelism cuts the matrices of each block, sharding then cuts
what each rank holds of them, and replicas average what is left. Gradients are means over all ranks
that see different data, whichever way that is done.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from hotlap.distributed.batchnorm import synchronise_norms
from hotlap.distributed.mesh import DIMENSIONS, Layout
from hotlap.errors import UsageError

SEQUENCE = 1
"""The dimension of it in what goes from block to block: [batch, sequence, width]."""


def build_mesh(layout: Layout, device_type: str) -> DeviceMesh | None:
    """Torch's mesh of all ranks; None for one process alone."""
    sizes = tuple(layout.sizes[name] for name in DIMENSIONS)
    if max(sizes) == 1:
        return None
    mesh = init_device_mesh(device_type, sizes, mesh_dim_names=DIMENSIONS)
    for name in DIMENSIONS:  # a mesh makes its groups with torch's own half an hour
        limit_wait(mesh[name].get_group(), layout.settings.timeout_s)
    return mesh


def limit_wait(group: dist.ProcessGroup, timeout_s: float) -> dist.ProcessGroup:
    """The group, whose ranks give up on one another after so long."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
    return group


def joined(layout: Layout, mesh: DeviceMesh, *names: str) -> dist.ProcessGroup:
    """The ranks of several dimensions together; torch has no public name for this yet."""
    group = mesh[names]._flatten("_".join(names)).get_group()
    return limit_wait(group, layout.settings.timeout_s)


def parallelise(model: nn.Module, layout: Layout, mesh: DeviceMesh | None) -> nn.Module:
    """The model, cut and replicated as the layout says; the pipeline has been cut before."""
    if mesh is None:
        return model
    settings, sizes = layout.settings, layout.sizes
    if settings.sync_batchnorm and layout.n_data > 1:
        model = synchronise_norms(model, joined(layout, mesh, "dp", "shard"))
    if sizes["tp"] > 1:
        cut_matrices(model, mesh["tp"], settings.sequence_parallel)
    if sizes["shard"] > 1 or (sizes["dp"] > 1 and (sizes["tp"] > 1 or sizes["pp"] > 1)):
        # Replicas of a model that is cut by other means are made by sharding too, over one part:
        # DDP knows neither distributed tensors nor the stages of torch's pipelines.
        return shard(model, mesh["dp", "shard"] if sizes["dp"] > 1 else mesh["shard"])
    if sizes["dp"] > 1:
        return DistributedDataParallel(
            model,
            process_group=mesh["dp"].get_group(),
            static_graph=settings.static_graph and not settings.find_unused_parameters,
            find_unused_parameters=settings.find_unused_parameters,
            gradient_as_bucket_view=True,
            bucket_cap_mb=settings.bucket_mib,
        )
    return model


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP: each block is one unit, gathered when it is needed; what is left belongs to the root.

    On a mesh of two dimensions the first one replicates: hybrid sharding.
    """
    for block in repeated_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that the model names; none of a stranger's model, which is one unit then."""
    blocks = getattr(model, "blocks", None)
    return list(blocks()) if callable(blocks) and not isinstance(blocks, nn.Module) else []


def cut_matrices(model: nn.Module, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Tensor parallelism, block by block, after the plan that the model's class has."""
    plan: dict[str, str] | None = getattr(model, "TENSOR_PARALLEL", None)
    if not plan:
        raise UsageError(
            f"mesh.tp: {type(model).__name__} has no plan for tensor parallelism (an attribute "
            "TENSOR_PARALLEL); vit and gpt have one"
        )
    _check_heads(model, mesh.size())
    blocks = repeated_blocks(model)
    for block in blocks:
        styles = _styles(plan, sequence_parallel)
        if sequence_parallel:
            styles |= _sequence_styles(block, plan)
        parallelize_module(block, mesh, styles)
    if sequence_parallel:
        parallelize_module(blocks[0], mesh, _cut_input())
        parallelize_module(blocks[-1], mesh, _whole_output())


def _check_heads(model: nn.Module, n_ranks: int) -> None:
    n_heads = getattr(model, "n_heads", None)
    if n_heads is not None and n_heads % n_ranks:
        raise UsageError(f"mesh.tp: {n_heads} heads cannot be shared by {n_ranks} ranks")


def _styles(plan: dict[str, str], sequence_parallel: bool) -> dict[str, Any]:
    rows = RowwiseParallel()
    if sequence_parallel:
        rows = RowwiseParallel(output_layouts=Shard(SEQUENCE), use_local_output=False)
    return {name: ColwiseParallel() if how == "columns" else rows for name, how in plan.items()}


def _sequence_styles(block: nn.Module, plan: dict[str, str]) -> dict[str, Any]:
    """Norms work on their part of the sequence; what follows them needs all of it.

    Between the layers there are distributed tensors, which know how long the whole sequence is: a
    ViT's, with its class token, is hardly ever one that ranks can share evenly.
    """
    styles: dict[str, Any] = {
        name: SequenceParallel(sequence_dim=SEQUENCE)
        for name, part in block.named_children()
        if isinstance(part, nn.LayerNorm)
    }
    for name in dict.fromkeys(path.partition(".")[0] for path in plan):
        styles[name] = PrepareModuleInput(
            input_layouts=Shard(SEQUENCE),
            desired_input_layouts=Replicate(),
            use_local_output=True,
        )
    return styles


def _cut_input() -> PrepareModuleInput:
    """Of the first block: the sequence is cut where it comes in."""
    return PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(SEQUENCE), use_local_output=False
    )


def _whole_output() -> PrepareModuleOutput:
    """Of the last block: what follows, be it a head or the next stage, has the whole sequence."""
    return PrepareModuleOutput(
        output_layouts=Shard(SEQUENCE), desired_output_layouts=Replicate(), use_local_output=True
    )
