"""A GPU had memory errors that could not be corrected: results are not to be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "ecc_errors"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Any at all since the driver was loaded."""
    bad = [gpu for gpu in case.gpus if gpu.n_ecc_errors]
    if bad:
        yield Finding(
            NAME,
            "error",
            f"memory errors on {named(bad)} that could not be corrected",
            tuple(f"GPU {gpu.index}: {gpu.n_ecc_errors} errors" for gpu in bad),
            None,
            "tell the operators, and train on another node",
        )


RULE = Rule(NAME, check)
