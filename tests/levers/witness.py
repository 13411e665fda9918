"""A lever that changes nothing and tells what a training is really made of.

A file of levers, which come behind hotlap's own: what this one reads off the loaders, the optimizer
and the model is what all others have left of them. The script that was edited is read the same way.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
from typing import Any

from hotlap.levers.common.lever import Decision, Lever, one_of

NAME = "witness"
VARIABLES = ("OMP_", "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF", "ONEDNN_", "CXX")
"""How the names begin of what a lever for the CPU may put into the environment."""


def apply(torch: Any, value: str, process: Any) -> None:
    """Look at each object when the training first uses it: what it was made with is known then."""
    told: set[str] = set()

    def tell(what: str, **facts: Any) -> None:
        if what not in told:
            told.add(what)
            process.as_lever(NAME, process.did, json.dumps({what: facts}))

    _see_loaders(torch, process, tell)
    _see_inputs(torch, process, tell)
    _see_calls(torch, process, tell)
    _see_updates(torch, process, tell)


def _see_loaders(torch: Any, process: Any, tell: Any) -> None:
    kind = torch.utils.data.DataLoader
    iterate = kind.__iter__

    def see(loader: Any) -> Any:
        context = loader.multiprocessing_context
        names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size")
        facts = {name: getattr(loader, name) for name in names}
        tell("loader", start_method=context and context.get_start_method(), **facts)
        return iterate(loader)

    process.replace(kind, "__iter__", see)


def _see_inputs(torch: Any, process: Any, tell: Any) -> None:
    def see(module: Any, args: Any, kwargs: Any) -> Any:
        images = _seen_by_forward(module, args, kwargs)[0]
        tell("input", dtype=str(images.dtype), is_channels_last=_is_channels_last(torch, images))
        return args, kwargs

    process.on_input(see)


def _seen_by_forward(module: Any, args: Any, kwargs: Any) -> Any:
    """Behind the hooks that an edit may have put in."""
    for hook in module._forward_pre_hooks.values():
        args, kwargs = hook(module, args, kwargs)
    return args


def _see_calls(torch: Any, process: Any, tell: Any) -> None:
    """Inside whatever a call of the model is put into: autocast is on there, or it is not."""

    def see(module: Any) -> Any:
        weights = [one for one in module.parameters() if one.dim() == 4]
        tell(
            "model",
            dtypes=sorted({str(one.dtype) for one in module.parameters()}),
            are_channels_last=[_is_channels_last(torch, one) for one in weights],
            is_compiled=module._compiled_call_impl is not None,
            autocast=torch.is_autocast_enabled("cpu") and str(torch.get_autocast_dtype("cpu")),
        )
        return contextlib.nullcontext()

    process.around_calls(see)


def _see_updates(torch: Any, process: Any, tell: Any) -> None:
    """At the first update: threads have worked by then, and are where OpenMP has put them."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def see(optimizer: Any, args: Any, kwargs: Any) -> None:
        names = ("lr", "fused", "foreach")
        tell("optimizer", **{name: optimizer.defaults[name] for name in names})
        tell("process", **_describe_process(torch))
        variables = {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)}
        tell("environment", **variables)

    process.on_undo(register_optimizer_step_pre_hook(see).remove)


def _describe_process(torch: Any) -> dict[str, Any]:
    return {
        "n_threads": torch.get_num_threads(),
        "n_cpus_of_this_thread": len(os.sched_getaffinity(0)),
        "gc_threshold": gc.get_threshold(),
        "gc_has_set_aside": gc.get_freeze_count() > 0,
        "flushes_denormals": float((torch.full((1,), 1e-38) * 1e-3).item()) == 0.0,
        "is_anomaly_on": torch.is_anomaly_enabled(),
    }


def _is_channels_last(torch: Any, tensor: Any) -> bool:
    return bool(tensor.is_contiguous(memory_format=torch.channels_last))


LEVERS = (
    Lever(
        name=NAME,
        summary="nothing is changed, and what there is is told",
        changes="nothing",
        risk="safe",
        phases=("other",),
        saves=lambda workload: 0.0,
        values=lambda workload: ("on",),
        takes=one_of("on"),
        applies=lambda workload: Decision(True, "there is always something to tell"),
        apply=apply,
        edit=lambda value, workload: (),
    ),
)
