"""Pinned memory: batches lie in memory that the GPU reads by itself, and copies do not wait.

When: the model is on a GPU and batches come from a DataLoader. `pin_memory=True` for every loader,
and `.to` and `.cuda` of a pinned tensor are non-blocking unless the script says otherwise. Costs
host memory that cannot be swapped. The same values: the device does the copy before what follows. A
script that writes into a batch on the host after copying it would race with the copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hotlap.levers.common.edits import Edit, advise
from hotlap.levers.common.later import report_once
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.loaders import edit_loaders, saved_of_copies
from hotlap.levers.common.pinning import pin_the_hosts_alone
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload


def apply(torch: Any, value: str, process: Process) -> None:
    """Pin the batches of all loaders and make copies of pinned tensors non-blocking."""
    if not (torch.version.cuda or torch.version.hip):
        return
    pin_the_hosts_alone(torch, process)
    did_once = report_once(process)

    def change(kind: type, arguments: dict[str, Any]) -> None:
        if not arguments["pin_memory"] and not process.is_forked:
            arguments["pin_memory"] = True
            process.did(f"batches of {type(arguments['dataset']).__name__} are pinned")

    process.on_loader(change)
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)
        process.replace(torch.Tensor, name, _without_waiting(torch, original, process, did_once))


def _without_waiting(
    torch: Any, original: Any, process: Process, did_once: Callable[[str], None]
) -> Any:
    is_tracing = torch.compiler.is_dynamo_compiling

    def can_go_on(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if tensor.is_cuda or says_itself(args, kwargs):
            return False
        is_to_gpu = original.__name__ == "cuda" or names_gpu(torch, args, kwargs)
        # The last question starts CUDA, which ends a forked worker: only where a copy does as well.
        return is_to_gpu and not process.is_forked and tensor.is_pinned()

    @functools.wraps(original)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or not can_go_on(self, args, kwargs):
            return original(self, *args, **kwargs)
        moved = original(self, *args, non_blocking=True, **kwargs)
        if moved.is_cuda:
            did_once("copies of pinned tensors to the device do not wait")
        return moved

    return move


def says_itself(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of `.to` or `.cuda` says whether it waits: by name, or as its only flag."""
    return "non_blocking" in kwargs or any(isinstance(one, bool) for one in args)


def names_gpu(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of `.to` leads to a GPU: by its name or number, or by a tensor there."""
    target = kwargs.get("device", kwargs.get("tensor", args[0] if args else None))
    if isinstance(target, torch.Tensor):
        return bool(target.is_cuda)
    if isinstance(target, torch.device):
        return bool(target.type == "cuda")
    return isinstance(target, int) or (isinstance(target, str) and target.startswith("cuda"))


def applies(workload: Workload) -> Decision:
    """A GPU, and loaders whose batches are not pinned."""
    if workload.device != "cuda":
        return Decision(False, "the model is not on a GPU, so that nothing is copied to one")
    if not workload.loaders:
        return Decision(False, "the script makes no DataLoader")
    if not all(one.facts.get("pin_memory") for one in workload.loaders):
        return Decision(True, "batches are not pinned")
    if workload.share("transfer") < 0.01:
        return Decision(False, "batches are pinned, and the step hardly waits for copies")
    return Decision(True, "batches are pinned; copies may still wait")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """`pin_memory` of each loader; copies that do not wait are for a person to write."""
    loaders = tuple(one for one in workload.loaders if not one.facts.get("pin_memory"))
    copies = advise(
        workload.model_site, "what this line gets is copied by .to(device, non_blocking=True)"
    )
    return (*edit_loaders(loaders, pin_memory="True"), copies)


LEVER = Lever(
    name="pin_memory",
    summary="batches in pinned memory, copied to the GPU without waiting",
    changes="nothing",
    risk="safe",
    phases=("transfer", "data"),
    saves=lambda workload: saved_of_copies(workload, transfer=0.6, data=0.05),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    edit=edit,
)
