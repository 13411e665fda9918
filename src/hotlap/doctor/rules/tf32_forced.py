"""The environment switches TF32 on for every product, against torch's default.

Not a fault, but a training that needs full fp32 products does not get them, and nothing in its
script says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, is_on
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "tf32_forced"
VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Either variable, with a GPU."""
    found = [name for name in VARIABLES if is_on(case.environment.get(name))]
    if case.gpus and found:
        yield Finding(
            NAME,
            "note",
            "fp32 products run in TF32, whatever the script says",
            tuple(f"{name}={case.environment[name]}" for name in found),
            None,
            f"unset {' and '.join(found)} where full fp32 matters",
        )


RULE = Rule(NAME, check)
