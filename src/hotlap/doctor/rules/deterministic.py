"""The environment asks cuBLAS for results that do not vary: some products are slower by it."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "deterministic"
VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The variable, or the flag of torch that a site has switched on."""
    torch = case.machine.software.torch
    is_flag = torch is not None and torch.is_deterministic
    value = case.environment.get(VARIABLE)
    if (value and case.gpus) or is_flag:
        yield Finding(
            NAME,
            "note",
            "results are kept from varying run to run, which costs speed",
            (f"{VARIABLE}={value}" if value else "torch's deterministic algorithms are on",),
            None,
            f"unset {VARIABLE} where runs need not be the same to the bit",
        )


RULE = Rule(NAME, check)
