"""There is hardly any room under the path of the data: checkpoints and caches will fail."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "disk_full"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """What is free."""
    storage = case.machine.system.storage
    if storage is None or storage.free_bytes is None:
        return
    if storage.free_bytes < limits.least_free_bytes:
        yield Finding(
            NAME,
            "warning",
            f"{storage.free_bytes / 2**20:.0f} MiB are free under {storage.path}",
            (f"{storage.mount}, {storage.filesystem}",),
            None,
            "make room, or write checkpoints elsewhere",
        )


RULE = Rule(NAME, check)
