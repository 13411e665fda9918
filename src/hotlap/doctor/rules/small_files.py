"""A shared file system opens too few small files a second for the GPUs.

It has bandwidth but few operations: one image a file starves a training that could eat more. The
gain is from the images that can be opened, by all allocated CPUs at once, to those that the GPUs
could train on.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.appetite import images_per_s
from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "small_files"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Measured opens a second on a network file system."""
    storage, wanted = case.machine.system.storage, images_per_s(case, limits)
    if storage is None or storage.kind != "network" or not storage.opens_per_s or wanted is None:
        return
    had = storage.opens_per_s * (case.machine.system.cpu.n_allocated or 1)
    if had >= limits.least_appetite_share * wanted:
        return
    yield Finding(
        NAME,
        "warning",
        f"{storage.filesystem} opens {storage.opens_per_s:,.0f} small files a second per process",
        (
            f"{had:,.0f} with a process on each allocated CPU; "
            f"the GPUs could train on {wanted:,.0f} images a second",
        ),
        wanted / had,
        "pack the data into shards (tar files), or copy them to a local disk first",
    )


RULE = Rule(NAME, check)
