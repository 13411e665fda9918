"""Ranks got wrong numbers from each other: no training over them can be right."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "exchange_wrong"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Operations whose result was checked before they were timed."""
    ceilings = case.machine.ceilings
    wrong = sorted(
        {x.operation for x in ceilings.exchanges if x.median_s is None} if ceilings else ()
    )
    if wrong:
        yield Finding(
            NAME,
            "error",
            f"ranks get wrong results from {', '.join(wrong)}",
            ("each was done with numbers whose result is known beforehand",),
            None,
            "tell the operators; try NCCL_P2P_DISABLE=1 to see whether the links are to blame",
        )


RULE = Rule(NAME, check)
