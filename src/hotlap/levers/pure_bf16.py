"""pure_bf16: the model itself in bf16: parameters, gradients and optimizer state as well.

When: memory is short, or the optimizer takes much of the step: all of these are half as large, and
nothing is cast on the way. Inputs are cast to bf16, and what the model returns back to fp32, so
that the script's loss is computed in fp32. Changes the maths: a weight of 8 bits does not move by
an update that is smaller than its last one, so that a training with small learning rates stands
still. Statistics of batch norms are kept in bf16 too. On some virtual machines AMX is advertised
and kills the process: `onednn_isa` keeps oneDNN off it.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakSet, ref

from hotlap.levers.common.autocast import best_with, has_bf16, in_fp32, to_fp32
from hotlap.levers.common.edits import Edit, insert_before, tell, wrap_call
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process, is_compiled
from hotlap.levers.common.workload import Seen, Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Cast each fp32 model, what goes into it, and what comes out."""
    cast: WeakSet[Any] = WeakSet()
    _cast_before_ddp(torch, process, cast)

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if module not in cast:
            why_not = _why_not(torch, module)
            if why_not:
                process.failed(why_not)
                return
            module.to(torch.bfloat16)
            cast.add(module)
            process.on_undo(functools.partial(_put_back, torch, ref(module)))
        process.did(f"{type(module).__name__} is in bf16, with all its parameters")

    def to_half(leaf: Any) -> Any:
        is_full = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32
        return leaf.to(torch.bfloat16) if is_full else leaf

    def inputs(module: Any, args: Any, kwargs: Any) -> Any:
        if module not in cast:
            return args, kwargs
        return torch.utils._pytree.tree_map(to_half, (args, kwargs))

    def result(module: Any, given: Any) -> Any:
        return to_fp32(torch, given) if module in cast else given

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
    """The model before its optimizer is made, and its call.

    In DistributedDataParallel, buckets are made for gradients of the type that weights have then.
    """
    model = workload.model
    if model is None:
        return ()
    if model.facts.get("is_ddp"):
        sites = [one.site for one in workload.ddps] or [None]
        text = "{function}({first}.to(torch.bfloat16){rest})"
        before = tuple(wrap_call(site, text, "DistributedDataParallel") for site in sites)
    else:
        optimizer = workload.optimizers[0].site if workload.optimizers else None
        text = "{model}.to(torch.bfloat16)"
        before = (insert_before(optimizer, text, model=model.site),)
    return (*before, _edit_of_call(model, workload))


def _edit_of_call(model: Seen, workload: Workload) -> Edit:
    """Where one tensor comes out, and none but the first is to be cast; else told in words.

    No tensor is seen to go in where a call takes a dict or a list of them.
    """
    types = [dtype for _, dtype, _ in model.facts.get("inputs", ())]
    results = {one.facts["kind"] for one in workload.results}
    if not types or results != {"Tensor"} or "float32" in types[1:]:
        text = "floats that go into the model .to(torch.bfloat16), what it returns .float()"
        return tell(model.site, text)
    cast = ".to(torch.bfloat16)" if types[:1] == ["float32"] else ""
    return wrap_call(model.site, f"{{function}}({{first}}{cast}{{rest}}).float()")


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
