"""checkpointing: activations of repeated blocks are computed again in backward, not kept.

When: the model does not fit, or a larger batch would. Each block in a list of like blocks keeps
only its input; backward runs the block's forward once more. Costs about a third more time. Models
of transformers do it by their own switch, which knows about their caches. Changes nothing: random
numbers are drawn again as before, and batch statistics are gathered in the first run alone. A block
that changes anything else in its forward would do it twice.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

from hotlap.levers.common.edits import Edit, insert_before
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.modules import ForwardSwap
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

CHANGED_BY_FORWARD = ("SpectralNorm", "_SpectralNorm")
"""Modules with a state that every forward moves on."""
LAYERS = re.compile(
    r"ModuleList|Sequential|Linear|Conv.*\dd|Embedding|Identity|(Uni|F)latten|.*Norm(\dd)?|"
    r".*Pool\dd|.*Dropout(\dd)?|.*(ELU|ReLU\d?)|SiLU|Sigmoid|Tanh|Softmax|Upsample|.*Activation"
)
"""Layers, which are too small to be checkpointed, and the lists themselves."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Checkpoint the repeated blocks of every model."""
    swap = ForwardSwap(process, functools.partial(_forward, torch))

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        name = type(module).__name__
        if _is_checkpointed(module):
            return
        if _use_own_switch(module, process):
            process.did(f"{name} checkpoints its blocks by its own switch")
            return
        n_blocks = sum(swap(block) for block in _blocks(torch, module))
        if n_blocks:
            process.did(f"{n_blocks} blocks of {name} compute their activations again in backward")

    process.on_model(meet)


def _is_checkpointed(module: Any) -> bool:
    return any(getattr(part, "gradient_checkpointing", False) is True for part in module.modules())


def _use_own_switch(module: Any, process: Process) -> bool:
    """Models of transformers have a switch, and blocks that handle their caches then."""
    models = [part for part in module.modules() if hasattr(part, "gradient_checkpointing_enable")]
    if not models or not getattr(models[0], "supports_gradient_checkpointing", False):
        return False
    models[0].gradient_checkpointing_enable({"use_reentrant": False})
    process.on_undo(models[0].gradient_checkpointing_disable)
    return True


def _blocks(torch: Any, module: Any) -> Iterator[Any]:
    """The outermost blocks that stand beside others of their class in a list or sequence."""
    children = list(module.children())
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        kinds = [type(child) for child in children]
        like = [child for child in children if kinds.count(type(child)) > 1 and _is_block(child)]
        yield from like
        children = [child for child in children if not any(child is block for block in like)]
    for child in children:
        yield from _blocks(torch, child)


def _is_block(child: Any) -> bool:
    """Whether a module is made of modules, holds parameters, and can be run twice."""
    names = {type(part).__name__ for part in child.modules()}
    is_composed = next(child.children(), None) is not None
    has_parameters = next(child.parameters(), None) is not None
    return is_composed and has_parameters and not names & set(CHANGED_BY_FORWARD)


def _forward(torch: Any, original: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
    """The block's forward, checkpointed where there will be a backward."""
    if not torch.is_grad_enabled() or not block.training:
        return original(block, *args, **kwargs)
    more = {}
    # In a compiled program the statistics are no part of what is computed again.
    norms = [] if torch.compiler.is_compiling() else _norms_with_statistics(torch, block)
    if norms:
        more["context_fn"] = functools.partial(_contexts, norms)
    run = functools.partial(original, block)
    return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **more, **kwargs)


def _norms_with_statistics(torch: Any, block: Any) -> list[Any]:
    kind = torch.nn.modules.batchnorm._NormBase
    return [part for part in block.modules() if isinstance(part, kind) and part.track_running_stats]


def _contexts(norms: list[Any]) -> tuple[Any, Any]:
    """For the first run nothing, for the second one norms whose statistics are left alone."""
    return contextlib.nullcontext(), _without_statistics(norms)


@contextlib.contextmanager
def _without_statistics(norms: list[Any]) -> Iterator[None]:
    """Let the norms gather into copies: backward wants as many tensors as in the first run."""
    kept = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({k: v.clone() for k, v in buffers.items() if v is not None})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


def applies(workload: Workload) -> Decision:
    """Several modules of one class that is no layer of torch's: blocks, as far as can be seen."""
    if not workload.models:
        return Decision(False, "no model was seen in training")
    if not any(_repeated(one.facts.get("kinds", {})) for one in workload.models):
        return Decision(False, "the model has no repeated blocks")
    return Decision(True, "activations of repeated blocks need not be kept")


def _repeated(kinds: dict[str, int]) -> list[str]:
    """Classes that occur more than once and may be blocks, in a model that has lists of modules."""
    if not {"ModuleList", "Sequential"} & set(kinds):
        return []
    return [kind for kind, n in kinds.items() if n > 1 and not LAYERS.fullmatch(kind)]


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Told only: the loop over the blocks stands inside the model."""
    text = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # for block(x)"
    return (insert_before(None, text),)


LEVER = Lever(
    name="checkpointing",
    summary="activations of repeated blocks are computed again in backward, not kept",
    changes="nothing",
    risk="safe",
    phases=(),
    saves=lambda workload: 0.0,
    values=lambda workload: ("blocks",),
    takes=one_of("blocks"),
    applies=applies,
    apply=apply,
    edit=edit,
    saves_memory=True,
)
