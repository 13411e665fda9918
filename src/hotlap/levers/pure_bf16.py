"""pure_bf16: the model itself in bf16: parameters, gradients and optimizer state as well.

When: memory is short, or the optimizer takes much of the step: all of these are half as large, and
nothing is cast on the way. Inputs are cast to bf16, and what the model returns back to fp32, so
that the script's loss is computed in fp32. Changes the maths: a weight of 8 bits does not move by
an update that is smaller than its last one, so that a training with small learning rates stands
still. Statistics of batch norms are kept in bf16 too. Averages of weights (EMA, AveragedModel) that
are made before the first training call stay in fp32, and may not take weights in bf16. On some
virtual machines AMX is advertised and kills the process: `onednn_isa` keeps oneDNN off it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet, ref

from hotlap.levers.common.autocast import best_with, has_bf16, in_fp32, to_fp32
from hotlap.levers.common.edits import Edit, insert_after_import, tell, wrap_call
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.model_edits import before_optimizer, models_to_edit
from hotlap.levers.common.process import Process, is_compiled
from hotlap.levers.common.workload import Seen, Workload

CAST_BY_HOOK = {"Tensor", "tuple", "list", "dict"}
"""Results whose tensors the hook of the edit finds."""
IN_BF16 = """
def cast_floats(tree, before, after):
    one = lambda leaf: leaf.to(after) if getattr(leaf, "dtype", None) is before else leaf
    return torch.utils._pytree.tree_map(one, tree)


def inputs_to_bf16(module, args, kwargs):
    return cast_floats((args, kwargs), torch.float32, torch.bfloat16)


def result_to_fp32(module, args, result):
    return cast_floats(result, torch.bfloat16, torch.float32)


def in_bf16(model):
    model.register_forward_pre_hook(inputs_to_bf16, with_kwargs=True)
    model.register_forward_hook(result_to_fp32)
    return model.to(torch.bfloat16)
"""
"""Hooks hold for every call, of copies too; functions of a file can be saved with the model."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Cast each fp32 model, what goes into it, and what comes out."""
    cast: WeakSet[Any] = WeakSet()
    kinds: set[type] = set()
    _cast_before_ddp(torch, process, cast)

    def is_cast(module: Any) -> bool:
        if module not in cast and type(module) in kinds and _is_in_bf16(torch, module):
            cast.add(module)  # a copy of one that was cast
        return module in cast

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if not is_cast(module):
            why_not = _why_not(torch, module)
            if why_not:
                process.failed(why_not)
                return
            module.to(torch.bfloat16)
            cast.add(module)
            kinds.add(type(module))
            process.on_undo(functools.partial(_put_back, torch, ref(module)))
        process.did(f"{type(module).__name__} is in bf16, with all its parameters")

    def to_half(leaf: Any) -> Any:
        is_full = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32
        return leaf.to(torch.bfloat16) if is_full else leaf

    def inputs(module: Any, args: Any, kwargs: Any) -> Any:
        if not is_cast(module):
            return args, kwargs
        return torch.utils._pytree.tree_map(to_half, (args, kwargs))

    def result(module: Any, given: Any) -> Any:
        return to_fp32(torch, given) if is_cast(module) else given

    process.on_model(meet)
    process.on_input(inputs)
    process.on_output(result)


def _cast_before_ddp(torch: Any, process: Process, cast: WeakSet[Any]) -> None:
    """Cast a model before DistributedDataParallel lays out buckets for its gradients."""
    kind = torch.nn.parallel.DistributedDataParallel
    original = kind.__init__

    @functools.wraps(original)
    def constructor(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        can_be = not _why_not(torch, module)
        if can_be:
            module.to(torch.bfloat16)
        original(self, module, *args, **kwargs)
        if can_be:
            cast.add(self)

    process.replace(kind, "__init__", constructor)


def _why_not(torch: Any, module: Any) -> str:
    """Why a model cannot be cast; empty where it can."""
    name = type(module).__name__
    if _is_in_transform(torch):
        return f"{name} is first called inside a transform of torch.func, where none can be cast"
    floats = [one for one in module.parameters() if one.is_floating_point()]
    if any(one.dtype != torch.float32 for one in floats):
        return f"{name} is not in fp32"
    if any(one.is_complex() for one in (*module.parameters(), *module.buffers())):
        return f"{name} has complex numbers, of which a cast to bf16 keeps the real parts alone"
    if any(type(one.data) is not torch.Tensor for one in floats):
        return f"{name} has weights that are not plain tensors"
    parts = {kind.__name__ for part in module.modules() for kind in type(part).__mro__}
    if "DistributedDataParallel" in parts:
        return f"{name} was in DistributedDataParallel before it could be cast"
    return f"{name} is compiled" if is_compiled(module) else ""


def _is_in_transform(torch: Any) -> bool:
    """Whether `grad`, `vmap` or the like of torch.func is at work; a private name tells it."""
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def _is_in_bf16(torch: Any, module: Any) -> bool:
    floats = [one for one in module.parameters() if one.is_floating_point()]
    return bool(floats) and all(one.dtype == torch.bfloat16 for one in floats)


def _put_back(torch: Any, reference: Any) -> None:
    """A script may have let go of the model long ago."""
    module = reference()
    if module is not None:
        module.to(torch.float32)


def applies(workload: Workload) -> Decision:
    """An fp32 model on a device with bf16 arithmetic."""
    bf16 = has_bf16(workload)
    return in_fp32(workload) if bf16.yes else bf16


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Models before the optimizer is made, with hooks that cast at every call; else in words."""
    models = models_to_edit(workload, lambda facts: facts.get("dtypes") == ["float32"])
    results = {one.facts["kind"] for one in workload.results}
    if results and results <= CAST_BY_HOOK:
        casts = list(_cast_models(models, workload, "in_bf16({})"))
        sites = dict.fromkeys(one.site for one in casts)
        return (*(insert_after_import(site, IN_BF16) for site in sites), *casts)
    words = "floats that go into the model .to(torch.bfloat16), what it returns .float()"
    casts = list(_cast_models(models, workload, "{}.to(torch.bfloat16)"))
    return (*casts, *(tell(one.site, words) for one in models))


def _cast_models(models: Sequence[Seen], workload: Workload, cast: str) -> Iterator[Edit]:
    """In DistributedDataParallel, buckets are made for gradients of the type weights have then."""
    if any(one.facts.get("is_ddp") for one in models):
        first = f"{{function}}({cast.format('{first}')}{{rest}})"
        for site in [one.site for one in workload.ddps] or [None]:
            yield wrap_call(site, first, "DistributedDataParallel")
    for one in models:
        if not one.facts.get("is_ddp"):
            yield before_optimizer(workload, one, cast.format("{model}"))


LEVER = Lever(
    name="pure_bf16",
    summary="the model itself in bf16: parameters, gradients and optimizer state as well",
    changes="maths",
    risk="danger zone",
    phases=("forward", "backward", "optimizer"),
    saves=lambda workload: workload.on_device(0.5),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
    best_with=best_with,
    needs=("onednn_isa",),
    instead_of=("bf16", "fp16"),
    saves_memory=True,
)
