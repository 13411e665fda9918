"""cuda_graphs: the model's forward and backward as two CUDA graphs, replayed in every step.

When: the GPU waits for Python and for the launches of its kernels: small models, small batches,
many small operations. The host then launches two graphs in the place of hundreds of kernels, which
are the same kernels. Loss and update stay as they are. For calls with plain values and with tensors
that keep their shapes; others run as before. Costs the memory of a step that is never given back,
and a copy of inputs, results and gradients.

What Python does in `forward` is done in the first calls only. A model whose forward changes what
its parts hold, draws random numbers on the host or has hooks is left alone, and one whose layers,
settings or weights are exchanged is recorded anew. A recording is compared with a call before it is
used. What a forward reads from within other objects than modules, lists and dictionaries, from
globals, files or the clock is not seen, nor what it leaves there: then the guard sees other losses.
A backward that none before was like calls the model again. Where a weight has gradients from
within the model and from outside, they are added up in another order.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

from hotlap.levers.common.cuda_recorder import CudaRecorder
from hotlap.levers.common.edits import Edit, tell
from hotlap.levers.common.graphed import GraphedModel
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process, is_compiled
from hotlap.levers.common.unchanged import Settings
from hotlap.levers.common.workload import Workload

WRAPPERS = (
    *("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "SyncBatchNorm"),
)
"""Their calls do more than compute: they talk to other GPUs."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Replay the calls of every model that is on one GPU and not compiled."""
    lever, settings = process.lever, Settings(torch, process)

    def say(how: str, what: str) -> None:
        process.as_lever(lever, process.did if how == "done" else process.failed, what)

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        why_not = _why_not(torch, module)
        if why_not:
            process.failed(why_not)
            return
        gc.collect()  # a model that the script let go of holds itself, its graphs and their memory
        recorder = CudaRecorder(torch, next(module.parameters()).device)
        module._compiled_call_impl = GraphedModel(torch, module, settings, recorder, say)
        process.on_undo(functools.partial(_put_back, weakref.ref(module)))

    process.on_model(meet)


def _put_back(reference: Callable[[], Any]) -> None:
    """A script may have let go of the model, and its memory, long ago."""
    module = reference()
    if module is not None and isinstance(module._compiled_call_impl, GraphedModel):
        module._compiled_call_impl = None


def _why_not(torch: Any, module: Any) -> str:
    """Why a model cannot be recorded; empty where it can."""
    name = type(module).__name__
    bases = (kind.__name__ for part in module.modules() for kind in type(part).__mro__)
    wrappers = [name for name in bases if name in WRAPPERS]
    if wrappers:
        return f"{name} holds a {wrappers[0]}"
    if is_compiled(module):
        return f"{name} is compiled"
    tensors = [*module.parameters(), *module.buffers()]
    if any(type(one.data) is not torch.Tensor for one in tensors):
        return f"{name} has weights that are not plain tensors"
    if len({one.device for one in tensors}) > 1 or not tensors[0].is_cuda:
        return f"{name} is not on one GPU alone"
    return ""


def applies(workload: Workload) -> Decision:
    """A GPU that waits for its host, and a model that is called by itself."""
    if workload.device != "cuda":
        return Decision(False, "the model is not on a GPU, which CUDA graphs are for")
    if not workload.models:
        return Decision(False, "no model was seen in training")
    if all(one.facts.get("is_compiled") for one in workload.models):
        return Decision(False, "the script compiles its model, which can give it CUDA graphs")
    if any(one.facts.get("is_ddp") for one in workload.models):
        return Decision(False, "the model is in DistributedDataParallel, which talks on the way")
    if workload.phases_s and not workload.waits_for_host:
        return Decision(False, "the GPU does not wait for its host to launch kernels")
    return Decision(True, "the GPU waits for its host to launch kernels")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Told only: a batch has to be at hand before the loop."""
    text = (
        "before the loop write model = torch.cuda.make_graphed_callables(model, (inputs,)) with "
        "inputs of a batch's shape on the device; the next call overwrites what this one returned"
    )
    return tuple(tell(model.site, text) for model in workload.models)


LEVER = Lever(
    name="cuda_graphs",
    summary="the model's forward and backward as two CUDA graphs, replayed in every step",
    changes="nothing",
    risk="danger zone",
    phases=("forward", "backward"),
    saves=lambda workload: 0.7,
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
    new_dropout=True,
    instead_of=("compile",),
)
