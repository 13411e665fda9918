"""The repeated blocks of a model: what activation checkpointing works on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CHANGED_BY_FORWARD = frozenset({"SpectralNorm", "_SpectralNorm"})
"""What every forward moves on: modules, or hooks of modules as those of torch's older function."""


def repeated_blocks(torch: Any, module: Any) -> Iterator[Any]:
    """The outermost blocks that stand beside others of their class in a list or sequence."""
    children = list(module.children())
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        kinds = [type(child) for child in children]
        like = [child for child in children if kinds.count(type(child)) > 1 and _is_block(child)]
        yield from like
        children = [child for child in children if not any(child is block for block in like)]
    for child in children:
        yield from repeated_blocks(torch, child)


def _is_block(child: Any) -> bool:
    """Whether a module is made of modules, holds parameters, and can be run twice."""
    names = {
        type(one).__name__
        for part in child.modules()
        for one in (part, *part._forward_pre_hooks.values())
    }
    is_composed = next(child.children(), None) is not None
    has_parameters = next(child.parameters(), None) is not None
    return is_composed and has_parameters and not names & CHANGED_BY_FORWARD


def norms_with_statistics(torch: Any, block: Any) -> list[Any]:
    """Norms whose every forward counts in their running statistics."""
    kind = torch.nn.modules.batchnorm._NormBase
    return [part for part in block.modules() if isinstance(part, kind) and part.track_running_stats]


def own_switch(module: Any) -> Any | None:
    """The model of transformers in it that checkpoints by a switch of its own."""
    models = [part for part in module.modules() if hasattr(part, "gradient_checkpointing_enable")]
    if not models or not getattr(models[0], "supports_gradient_checkpointing", False):
        return None
    return models[0]


def describe_blocks(torch: Any, module: Any) -> dict[str, Any]:
    """Facts: classes of the blocks, whether they count statistics, whether there is a switch."""
    blocks = list(repeated_blocks(torch, module))
    return {
        "blocks": sorted({type(block).__name__ for block in blocks}),
        "blocks_have_statistics": any(norms_with_statistics(torch, block) for block in blocks),
        "has_checkpointing_switch": own_switch(module) is not None,
    }
