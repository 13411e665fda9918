"""This torch is a debug build: its own code was compiled without optimisation."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "debug_build"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """What torch.version says."""
    torch = case.machine.software.torch
    if torch is not None and torch.is_debug:
        yield Finding(
            NAME,
            "warning",
            f"torch {torch.version} is a debug build",
            ("torch.version.debug is true",),
            None,
            "install a release build",
        )


RULE = Rule(NAME, check)
