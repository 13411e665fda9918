"""compile: the model as one compiled program, with fused kernels, through torch.compile.

A cross-entropy behind it is compiled as well where it has very many logits (`compiled_loss.py`).

When: nearly any model; most where many small operations follow each other. Costs minutes in the
first steps, again for each new kind of shape, and a C++ compiler. Values:

    default             fused kernels
    reduce-overhead     CUDA graphs as well: for models that wait for Python
    max-autotune        matrix products are timed and chosen too, with CUDA graphs: slow to start
    coordinate-descent  the tiling of each kernel is searched: slow to start

and max-autotune-no-cudagraphs, which is not tried by itself.

Rounding: fused kernels round fewer times and in another order; dropout draws other numbers.

`module.compile()` compiles `_call_impl`, a frame that dynamo skips, and so relies on it meeting the
user's own `forward` behind. The `forward` of torch's own classes is skipped as well: nothing is
compiled of an nn.Sequential, without a word. Hence a frame of hotlap's own around the call, and one
of the script's in the edit: `torch.compile(model)` would give checkpoints other keys, and a
`forward` of the instance goes along into copies, where it runs the weights of the first. Of a
DistributedDataParallel the module inside is compiled, where dynamo still sees who calls it and cuts
the graph into its buckets, so that communication goes on beside backward.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from hotlap.levers.common.compiled_loss import compile_loss, loss_edits
from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.model_edits import before_optimizer, first_optimizer, models_to_edit
from hotlap.levers.common.process import Process, is_compiled
from hotlap.levers.common.workload import Seen, Workload

COMPILERS = {"cpu": ("g++", "c++", "clang++"), "cuda": ("gcc", "cc", "clang")}
WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
MODES = (
    *("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "coordinate-descent",
)
IN_PLACE = """
def compile_in_place(model, **how):
    call = lambda *args, **kwargs: model._call_impl(*args, **kwargs)
    model._compiled_call_impl = torch.compile(call, **how)
"""
Compiled = list[tuple[Callable[[], Any], Callable[[], Any]]]
"""Weak references: a module that is called, and what of it is compiled."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Compile every model that the script has not compiled."""
    compiled: Compiled = []
    options = {"coordinate_descent_tuning": True} if value == "coordinate-descent" else None
    how = {"mode": None if options else value, "options": options}

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        is_ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        model = module.module if is_ddp else module
        _take_back_parts(compiled, module)
        if is_compiled(module):
            return
        model._compiled_call_impl = torch.compile(_frame_around(model), **how)
        process.on_undo(functools.partial(_put_back, ref(model)))
        compiled.append((ref(module), ref(model)))
        process.did(f"{type(model).__name__} is compiled, mode '{value}'")

    process.on_model(meet)
    compile_loss(torch, process, how)
    if value in WITH_CUDA_GRAPHS:
        _mark_steps(torch, process, compiled)


def _take_back_parts(compiled: Compiled, module: Any) -> None:
    """Leave parts that were compiled by themselves to the program of the model that holds them.

    A part may be called while the model is made, for the shape of what comes out.
    """
    parts = set(map(id, module.modules()))
    for one in list(compiled):
        called, model = one
        if id(called()) in parts:
            _put_back(model)
            compiled.remove(one)


def _put_back(reference: Callable[[], Any]) -> None:
    """A script may have let go of the model long ago."""
    model = reference()
    if model is not None:
        model._compiled_call_impl = None


def _frame_around(model: Any) -> Callable[..., Any]:
    """A function that dynamo does not skip, of a code object of its own: caches go by code."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


def _mark_steps(torch: Any, process: Process, compiled: Compiled) -> None:
    """Tell CUDA graphs where a step begins: at the first call after an update.

    Their memory is then reused from the start, also where a result of the last step is still kept.
    With several models a result of one may still be needed by another: torch's own rule, which
    waits for backwards that are still to come, is left to decide there.
    """
    import torch.optim.optimizer as optimizer_module

    is_new_step = True

    def updated(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal is_new_step
        is_new_step = True

    def mark(module: Any, args: Any, kwargs: Any) -> Any:
        nonlocal is_new_step
        models = [one for called, _ in compiled if (one := called()) is not None]
        is_alone = len(models) == 1 and models[0] is module
        if is_new_step and is_alone and torch.is_grad_enabled():
            torch.compiler.cudagraph_mark_step_begin()
            is_new_step = False
        return args, kwargs

    handle = optimizer_module.register_optimizer_step_post_hook(updated)
    process.on_undo(handle.remove)
    process.on_input(mark)


def values(workload: Workload) -> tuple[str, ...]:
    """CUDA graphs and searches of tilings are for GPUs."""
    if workload.device == "cpu":
        return ("default", "max-autotune")
    return ("reduce-overhead", "default", "max-autotune", "coordinate-descent")


def applies(workload: Workload) -> Decision:
    """A model that is not compiled, and a compiler to do it with."""
    if not workload.models:
        return Decision(False, "no model was seen in training")
    if all(one.facts.get("is_compiled") for one in workload.models):
        return Decision(False, "the script compiles its model already")
    if _compiler(workload) is None:
        names = ", ".join(COMPILERS.get(workload.device, COMPILERS["cpu"]))
        return Decision(False, f"torch.compile needs a compiler, and none is found ({names})")
    return Decision(True, "the model runs one operation at a time")


def _compiler(workload: Workload) -> str | None:
    """The compiler that is on the PATH, the environment's own choice first."""
    variable = "CXX" if workload.device == "cpu" else "CC"
    names = (os.environ.get(variable), *COMPILERS.get(workload.device, COMPILERS["cpu"]))
    return next((name for name in names if name and shutil.which(name)), None)


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """On a CPU torch looks for $CXX, or g++, alone: name what there is."""
    found = _compiler(workload)
    if workload.device != "cpu" or found in (None, "g++", os.environ.get("CXX")):
        return {}
    return {"CXX": found or ""}


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Models are compiled in place, before the optimizer is made; a large loss from the start."""
    how = f'mode="{value}"' if value != "coordinate-descent" else f"options={_OPTIONS}"
    models = models_to_edit(workload, lambda facts: not facts.get("is_compiled"))
    before = [before_optimizer(workload, one, _compile(one, how)) for one in models]
    if any(one.facts.get("forward_is_torchs") for one in models):
        before.insert(0, insert_after_import(first_optimizer(workload), IN_PLACE))
    return (*before, *loss_edits(workload, how))


def _compile(model: Seen, how: str) -> str:
    """Of torch's own classes `module.compile()` compiles nothing."""
    if not model.facts.get("forward_is_torchs"):
        return f"{{model}}.compile({how})"
    is_ddp = model.facts.get("kind") == "DistributedDataParallel"
    return f"compile_in_place({'{model}.module' if is_ddp else '{model}'}, {how})"


_OPTIONS = '{"coordinate_descent_tuning": True}'


def saves(workload: Workload) -> float:
    """A GPU's step is mostly kernels that can be fused, or waits for their launches."""
    if workload.waits_for_host:
        return 0.5
    return 0.45 if workload.device == "cuda" else 0.35


def cost(value: str) -> float:
    """Tuning of kernels takes minutes, compiling some tens of seconds."""
    return {"max-autotune": 25.0, "coordinate-descent": 15.0}.get(value, 4.0)


LEVER = Lever(
    name="compile",
    summary="the model as one compiled program, with fused kernels",
    changes="rounding",
    bound=5e-3,
    risk="safe",
    phases=("forward", "backward"),
    saves=saves,
    values=values,
    takes=one_of(*MODES),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
    new_dropout=True,
    instead_of=("cuda_graphs",),
    cost=cost,
)
