"""There is no torch that can be imported under this Python: nothing can be trained."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "torch_missing"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Torch did not tell anything about itself."""
    software = case.machine.software
    if software.torch is None:
        yield Finding(
            NAME,
            "error",
            "torch cannot be imported",
            (software.why_no_torch, f"Python {software.python.version}"),
            None,
            "install torch into this environment, or start hotlap from the one that has it",
        )


RULE = Rule(NAME, check)
