"""/dev/shm is small: workers of a DataLoader hand batches over through it, and die when it is full.

Containers get 64 MiB if nobody asks for more.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "small_shm"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Its size, not what is free of it."""
    n_bytes = case.machine.system.memory.shared_bytes
    if n_bytes is None or n_bytes >= limits.least_shared_bytes:
        return
    container = case.machine.system.container
    yield Finding(
        NAME,
        "warning",
        f"/dev/shm has {n_bytes / 2**20:.0f} MiB: workers that load data will run out of it",
        (f"container: {container or 'none'}",),
        None,
        "start the container with --ipc=host or --shm-size=16g"
        if container
        else "have /dev/shm mounted larger",
    )


RULE = Rule(NAME, check)
