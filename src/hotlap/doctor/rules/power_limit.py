"""The power limit of a GPU was lowered. Often on purpose: energy falls faster than speed."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "power_limit"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Enforced limit over the default one."""
    low = [
        gpu
        for gpu in case.gpus
        if gpu.power_limit_w
        and gpu.power_default_w
        and gpu.power_limit_w < limits.least_power_share * gpu.power_default_w
    ]
    if low:
        yield Finding(
            NAME,
            "note",
            f"{named(low)} may draw less power than usual",
            tuple(
                f"GPU {gpu.index}: {gpu.power_limit_w:.0f} W of {gpu.power_default_w:.0f} W"
                for gpu in low
            ),
            None,
            "keep it in mind when figures of two machines are compared",
        )


RULE = Rule(NAME, check)
