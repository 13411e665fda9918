"""Other processes hold memory of a GPU: it is slower and smaller, and nothing measured is valid."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "gpu_busy"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """By the memory in use: in a container their processes are not seen."""
    busy = [gpu for gpu in case.gpus if (gpu.memory_used_bytes or 0) > limits.most_foreign_bytes]
    if not busy:
        return
    evidence = []
    for gpu in busy:
        who = ", ".join(f"{one.name or 'process'} ({one.pid})" for one in gpu.processes)
        used = (gpu.memory_used_bytes or 0) / 2**30
        evidence.append(f"GPU {gpu.index}: {used:.1f} GiB in use by {who or 'unseen processes'}")
    yield Finding(
        NAME,
        "warning",
        f"others work on {named(busy)}",
        tuple(evidence),
        None,
        "ask the scheduler for GPUs of your own, or end what was left behind",
    )


RULE = Rule(NAME, check)
