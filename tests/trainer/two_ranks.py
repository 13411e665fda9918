"""Runs a function in two processes that can talk to one another over gloo."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

N_RANKS = 2
LIMIT_S = 120


def on_two_ranks(function: Callable[[int], Any], folder: Path) -> Any:
    """What the function returns on rank 0; it is called with the rank, and found by its name."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=_work, args=(function, rank, str(folder), results), daemon=True)
        for rank in range(N_RANKS)
    ]
    for one in ranks:
        one.start()
    try:
        return _first_of(results, ranks)
    finally:
        for one in ranks:
            one.join(timeout=10)
            one.kill()


def _first_of(results: Any, ranks: list[Any]) -> Any:
    """The result, as soon as it is there; a rank that died is not waited for."""
    for _ in range(LIMIT_S):
        try:
            return results.get(timeout=1)
        except queue.Empty:
            codes = [one.exitcode for one in ranks]
            assert not any(codes), f"a rank died: exit codes {codes}"
    raise TimeoutError(f"two ranks had no result after {LIMIT_S} s")


def _work(function: Callable[[int], Any], rank: int, folder: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=N_RANKS,
        timeout=timedelta(seconds=LIMIT_S / 2),
    )
    found = function(rank)
    if rank == 0:
        results.put(found)
    dist.barrier()
    dist.destroy_process_group()
