"""longest_input: memory for long inputs is taken from the GPU at once, before training.

When: batches of varying length on a GPU. Torch's allocator takes a new block from the driver
whenever a batch is longer than any before, and each time may have to wait for the device and give
back what it cached. How long the longest input will be cannot be seen from outside, so a share of
the free memory is allocated and freed in one piece before the first step: it stays with the
allocator, which cuts later tensors from it. Costs: that memory is not there for other processes on
the GPU, nor for libraries that ask the driver themselves. Changes nothing.
"""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.edits import Edit, insert_before
from hotlap.levers.common.lever import Decision, Lever, Takes
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

PADDED = ("Embedding", "LSTM", "GRU", "RNN", "MultiheadAttention")
"""Modules of models whose inputs have a length."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Take the memory when the first model on a GPU is met, once a device."""
    taken: set[Any] = set()

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        device = next(iter(module.parameters())).device
        if device.type != "cuda" or device in taken:
            return
        taken.add(device)
        free_bytes, _ = torch.cuda.mem_get_info(device)
        n_bytes = int(free_bytes * float(value))
        torch.empty(n_bytes, dtype=torch.uint8, device=device)  # and is freed at once
        process.on_undo(torch.cuda.empty_cache)
        process.did(f"{n_bytes / 2**30:.1f} GiB of {device} are held for long inputs")

    process.on_model(meet)


def _is_share(value: str) -> bool:
    try:
        return 0 < float(value) < 1
    except ValueError:
        return False


TAKES = Takes("a share of the free memory between 0 and 1, as in '0.5',", _is_share)


def applies(workload: Workload) -> Decision:
    """Sequences on a GPU, put together into batches by a function of the script's own."""
    if workload.device != "cuda":
        return Decision(False, "it is about the allocator of GPU memory; the model is not on a GPU")
    if not workload.n_modules(*PADDED):
        return Decision(False, "the model takes no sequences")
    if not any(one.facts.get("has_collate") for one in workload.loaders):
        return Decision(False, "batches are put together by torch's default: all of one length")
    return Decision(True, "batches can differ in length, and the allocator grows with them")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Allocate and drop, before the optimizer is made."""
    site = workload.optimizers[0].site if workload.optimizers else None
    n_bytes = f"int(torch.cuda.mem_get_info()[0] * {value})"
    return (insert_before(site, f'torch.empty({n_bytes}, dtype=torch.uint8, device="cuda")'),)


LEVER = Lever(
    name="longest_input",
    summary="GPU memory for long inputs is taken in one piece before training",
    changes="nothing",
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: workload.on_device(0.05),
    values=lambda workload: ("0.5", "0.8"),
    takes=TAKES,
    applies=applies,
    apply=apply,
    edit=edit,
)
