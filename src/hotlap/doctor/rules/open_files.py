"""Few files may be open at a time: workers that hand over tensors hit 'too many open files'."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "open_files"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The soft limit."""
    limit = case.machine.system.memory.open_files_limit
    if limit is not None and limit < limits.least_open_files:
        yield Finding(
            NAME,
            "note",
            f"{limit} files may be open at a time",
            ("ulimit -n",),
            None,
            f"ulimit -n {limits.least_open_files} in the job, before many workers are used",
        )


RULE = Rule(NAME, check)
