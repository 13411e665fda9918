"""The GPU's memory is nearly full, and a good part of it is held and not used: it is in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent
from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import GIB, Thresholds
from hotlap.records.finding import Finding

NAME = "fragmentation"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """What the allocator has taken beyond what tensors held at the peak."""
    kernels, training = case.kernels, case.training
    memory = kernels.rank.memory if kernels else None
    whole = case.gpus[0].memory_bytes if case.gpus else None
    if training is None or memory is None or not memory.fragmentation or not memory.peak:
        return
    taken = memory.peak + memory.fragmentation
    lost = memory.fragmentation / taken
    if not whole or taken < limits.full_memory * whole or lost < limits.least_fragmentation:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(lost)} of the memory that torch has taken is in pieces that it cannot use",
        (f"{taken / GIB:.1f} of {whole / GIB:.0f} GiB taken, {memory.peak / GIB:.1f} GiB in use",),
        None,
        lever_cure(training, "cuda_allocator"),
    )


RULE = Rule(NAME, check, needs=("training", "profile"))
