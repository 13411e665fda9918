"""Torch's own kernels use no vector instructions of a CPU that has them.

A build without them, or ATEN_CPU_CAPABILITY, which is left over from a search for a bug.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "cpu_capability"
VARIABLE = "ATEN_CPU_CAPABILITY"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Torch says DEFAULT where the CPU has more."""
    stack = case.machine.stack
    if stack.cpu_capability != "works":
        return
    is_set = VARIABLE in case.environment
    yield Finding(
        NAME,
        "advice" if case.gpus else "warning",
        "torch uses no vector instructions on this CPU",
        (stack.cpu_how, *([f"{VARIABLE}={case.environment[VARIABLE]}"] if is_set else [])),
        None,
        f"unset {VARIABLE}" if is_set else "install a build of torch for this CPU",
    )


RULE = Rule(NAME, check)
