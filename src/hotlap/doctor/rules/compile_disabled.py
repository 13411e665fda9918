"""torch.compile is switched off by the environment: it returns models as they were."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, is_on
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "compile_disabled"
VARIABLES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Either variable."""
    found = [name for name in VARIABLES if is_on(case.environment.get(name))]
    if found:
        yield Finding(
            NAME,
            "advice",
            "torch.compile does nothing here",
            tuple(f"{name}={case.environment[name]}" for name in found),
            None,
            f"unset {' '.join(found)}",
        )


RULE = Rule(NAME, check)
