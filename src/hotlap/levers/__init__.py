"""Levers: one thing each that can be changed to make the step faster, smaller or cheaper.

One file a lever: its docstring is its card, LEVER its description. They are tried in the order of
the tuner and applied in the order they stand here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.levers import (
    affinity,
    allocator,
    attention,
    batch_size,
    bf16,
    bucket_by_length,
    channels_last,
    checkpointing,
    compile,
    cuda_allocator,
    cuda_graphs,
    cudnn_benchmark,
    ddp,
    debug_off,
    device_prefetch,
    flush_denormals,
    foreach_optimizer,
    four_channels,
    fp8,
    fp16,
    fused_optimizer,
    gc_pauses,
    longest_input,
    onednn_isa,
    persistent_workers,
    pin_memory,
    prefetch_factor,
    pure_bf16,
    start_method,
    tf32,
    threads,
    uint8_images,
    workers,
)
from hotlap.levers.common.lever import Lever

LEVERS: tuple[Lever, ...] = (
    tf32.LEVER,
    bf16.LEVER,
    fp16.LEVER,
    pure_bf16.LEVER,
    cudnn_benchmark.LEVER,
    attention.LEVER,
    channels_last.LEVER,
    four_channels.LEVER,
    fp8.LEVER,
    checkpointing.LEVER,
    compile.LEVER,
    cuda_graphs.LEVER,
    ddp.LEVER,
    fused_optimizer.LEVER,
    foreach_optimizer.LEVER,
    longest_input.LEVER,
    workers.LEVER,
    prefetch_factor.LEVER,
    start_method.LEVER,
    uint8_images.LEVER,
    pin_memory.LEVER,
    device_prefetch.LEVER,
    # Around the prefetching, so that an epoch ends where it does for the script.
    persistent_workers.LEVER,
    batch_size.LEVER,
    bucket_by_length.LEVER,
    debug_off.LEVER,
    gc_pauses.LEVER,
    flush_denormals.LEVER,
    threads.LEVER,
    affinity.LEVER,
    allocator.LEVER,
    onednn_isa.LEVER,
    cuda_allocator.LEVER,
)


def find_levers(files: Sequence[str] = ()) -> tuple[Lever, ...]:
    """All levers: hotlap's own, then those of a user's files (each with a tuple LEVERS)."""
    found = list(LEVERS)
    for file in files:
        found += _levers_of(Path(file))
    return tuple(found)


def check_names(names: Iterable[str], levers: Sequence[Lever], source: str = "") -> None:
    """Refuse a name that is no lever's; `source` is the file that holds it."""
    known = sorted(lever.name for lever in levers)
    for name in names:
        if name not in known:
            where = f"{source}: " if source else ""
            raise UsageError(f"{where}'{name}' is no lever; there are {', '.join(known)}")


def _levers_of(path: Path) -> tuple[Lever, ...]:
    spec = importlib.util.spec_from_file_location(f"hotlap_levers_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"the lever file {path} does not exist or is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        levers = tuple(module.LEVERS)
    except Exception as error:
        raise UsageError(f"the lever file {path} cannot be used: {error}") from None
    if not all(isinstance(lever, Lever) for lever in levers):
        raise UsageError(f"LEVERS of {path} holds something that is no Lever")
    return levers
