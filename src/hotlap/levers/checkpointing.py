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
from collections.abc import Iterator
from typing import Any

from hotlap.levers.common.blocks import norms_with_statistics, own_switch, repeated_blocks
from hotlap.levers.common.edits import Edit, insert_after_import, tell
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.model_edits import before_optimizer, first_optimizer, models_to_edit
from hotlap.levers.common.modules import ForwardSwap
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload

WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
"""Where torch has the function that checkpoints modules of a model by their class."""
SWITCH = "has_checkpointing_switch"


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
        n_blocks = sum(swap(block) for block in repeated_blocks(torch, module))
        if n_blocks:
            process.did(f"{n_blocks} blocks of {name} compute their activations again in backward")

    process.on_model(meet)


def _is_checkpointed(module: Any) -> bool:
    return any(getattr(part, "gradient_checkpointing", False) is True for part in module.modules())


def _use_own_switch(module: Any, process: Process) -> bool:
    """Models of transformers have a switch, and blocks that handle their caches then."""
    model = own_switch(module)
    if model is None:
        return False
    model.gradient_checkpointing_enable({"use_reentrant": False})
    process.on_undo(model.gradient_checkpointing_disable)
    return True


def _forward(torch: Any, original: Any, block: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The block's forward, checkpointed where there will be a backward."""
    if not torch.is_grad_enabled() or not block.training:
        return original(block, *args, **kwargs)
    more = {}
    # In a compiled program the statistics are no part of what is computed again.
    norms = [] if torch.compiler.is_compiling() else norms_with_statistics(torch, block)
    if norms:
        more["context_fn"] = functools.partial(_contexts, norms)
    run = functools.partial(original, block, **kwargs)  # whose names may be checkpoint's own
    return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **more)


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
    """Modules of one class beside each other in a list or sequence."""
    if not workload.models:
        return Decision(False, "no model was seen in training")
    if not any(_blocks(one) or one.facts.get(SWITCH) for one in workload.models):
        return Decision(False, "the model has no repeated blocks")
    return Decision(True, "activations of repeated blocks need not be kept")


def _blocks(model: Seen) -> list[str]:
    """The classes of its blocks."""
    found: list[str] = model.facts.get("blocks", [])
    return found


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Each model's own switch, or torch's function for blocks by their class."""
    models = models_to_edit(workload, lambda facts: bool(facts.get("blocks") or facts.get(SWITCH)))
    return tuple(dict.fromkeys(one for model in models for one in _edits_of(model, workload)))


def _edits_of(model: Seen, workload: Workload) -> Iterator[Edit]:
    if model.facts.get(SWITCH):
        enable = '{model}.gradient_checkpointing_enable({"use_reentrant": False})'
        yield before_optimizer(workload, model, enable)
        return
    names = ", ".join(f'"{name}"' for name in _blocks(model))
    if model.facts.get("blocks_have_statistics") or model.facts.get("is_ddp"):
        why = "its batch norms count every batch twice then, unless the second run leaves them out"
        why = "before the model goes into its DDP" if model.facts.get("is_ddp") else why
        yield tell(model.site, f"checkpoint(block, x, use_reentrant=False) for {names}: {why}")
        return
    wanted = f"check_fn=lambda part: type(part).__name__ in {{{names}}}"
    importing = f"from {WRAPPERS} import apply_activation_checkpointing"
    yield insert_after_import(first_optimizer(workload), importing)
    text = f"apply_activation_checkpointing({{model}}, {wanted})"
    yield before_optimizer(workload, model, text)


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
