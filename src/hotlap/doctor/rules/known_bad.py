"""An installed version is known to be bad; the report that says so is named."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "known_bad"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """One finding a version."""
    for bad in case.machine.stack.known_bad:
        yield Finding(
            NAME,
            "warning",
            f"{bad.package} {bad.version}: {bad.what}",
            (bad.source,),
            None,
            f"install another version of {bad.package}",
        )


RULE = Rule(NAME, check)
