"""The GPU's memory is nearly full at the peak: the batch cannot grow, and nothing is in reserve."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import GIB, Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "memory_full"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The peak against the memory of the smallest GPU."""
    peak = training.run.memory.device_peak_bytes
    whole = min((gpu.memory_bytes for gpu in case.gpus if gpu.memory_bytes), default=None)
    if not training.is_on_gpu or not peak or not whole or peak < limits.full_memory * whole:
        return
    yield Finding(
        NAME,
        "note",
        f"{percent(peak / whole)} of the GPU's memory is in use at the peak",
        (f"{peak / GIB:.1f} of {whole / GIB:.0f} GiB",),
        None,
        "activation checkpointing makes room for a larger batch: "
        + lever_cure(training, "checkpointing"),
    )


RULE = training_rule(NAME, check)
