"""NVIDIA_TF32_OVERRIDE=0 keeps TF32 off, whatever the script asks for.

The gain is that of a step of fp32 products: the measured rate with TF32 over that without.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.machine.known_bad import parse_version
from hotlap.records.finding import Finding

NAME = "tf32_override"
VARIABLE = "NVIDIA_TF32_OVERRIDE"
FIRST_WITH_TF32 = (8, 0)


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The variable, and a GPU that has TF32."""
    able = [g for g in case.gpus if parse_version(g.compute_capability) >= FIRST_WITH_TF32]
    if case.environment.get(VARIABLE) != "0" or not able:
        return
    ceilings = case.machine.ceilings
    without = ceilings.rate("matmul fp32") if ceilings else None
    with_it = ceilings.rate("matmul tf32") if ceilings else None
    yield Finding(
        NAME,
        "warning",
        "TF32 is switched off for every program, convolutions included",
        (f"{VARIABLE}=0", *_rates(with_it, without)),
        with_it / without if with_it and without else None,
        f"unset {VARIABLE}",
    )


def _rates(with_it: float | None, without: float | None) -> tuple[str, ...]:
    if not with_it or not without:
        return ()
    return (f"fp32 products: {without / 1e12:.0f} TFLOP/s, with TF32 {with_it / 1e12:.0f}",)


RULE = Rule(NAME, check)
