"""The system's own Python, outside a container: an update of the node changes the training."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "loose_environment"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Neither a virtual environment nor a container."""
    python = case.machine.software.python
    if not python.is_isolated and case.machine.system.container is None:
        yield Finding(
            NAME,
            "note",
            "packages come from the system's own Python",
            (python.executable,),
            None,
            "make a virtual environment with pinned versions, or use a container",
        )


RULE = Rule(NAME, check)
