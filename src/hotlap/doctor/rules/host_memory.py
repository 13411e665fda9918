"""The job has little host memory beside that of its GPUs: pinned batches, workers and checkpoints
live there."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.machine.files import least
from hotlap.records.finding import Finding

NAME = "host_memory"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """What the job may use against the memory of all visible GPUs."""
    memory = case.machine.system.memory
    host = least((memory.total_bytes, memory.limit_bytes))
    on_gpus = sum(gpu.memory_bytes or 0 for gpu in case.gpus)
    if host is None or host >= limits.least_host_share * on_gpus:
        return
    yield Finding(
        NAME,
        "advice",
        f"{host / 2**30:.0f} GiB of host memory for {on_gpus / 2**30:.0f} GiB on the GPUs",
        (
            f"the limit of the job is {memory.limit_bytes / 2**30:.0f} GiB"
            if memory.limit_bytes
            else "the machine has no more",
        ),
        None,
        "ask for more memory, or keep workers and prefetched batches few",
    )


RULE = Rule(NAME, check)
