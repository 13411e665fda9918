"""The driver is too old for the CUDA that torch was built with."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "driver_cuda"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """What the Stack says of the driver."""
    stack = case.machine.stack
    if stack.driver == "does not fit":
        yield Finding(
            NAME,
            "error",
            "the driver is too old for this build of torch",
            (stack.driver_how,),
            None,
            "have the driver updated, or install torch for an older CUDA",
        )


RULE = Rule(NAME, check)
