"""A GPU is cut into partitions: a training gets a part of its memory and of its processors."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "mig"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """MIG mode."""
    cut = [gpu for gpu in case.gpus if gpu.is_mig]
    if cut:
        yield Finding(
            NAME,
            "note",
            f"{named(cut)} is cut into partitions (MIG)",
            ("data sheets, MFU and utilisation of the whole chip do not apply",),
            None,
            "ask for a whole GPU where a partition is too small",
        )


RULE = Rule(NAME, check)
