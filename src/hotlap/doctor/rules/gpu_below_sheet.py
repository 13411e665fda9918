"""A GPU does far less than its data sheet says, in products or in copies of its own memory.

The gain is from what was measured to what a healthy one reaches.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.ceilings import Ceiling
from hotlap.records.finding import Finding

NAME = "gpu_below_sheet"
LOOKED_AT = ("matmul bf16", "matmul fp16", "memory copy")
"""In fp32 and fp8 the libraries' kernels, and not the chip, often set the rate."""


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Measured rates with a data sheet beside them."""
    ceilings = case.machine.ceilings
    low = [
        (one, one.ratio)
        for one in (ceilings.rates if ceilings else ())
        if one.name in LOOKED_AT and one.ratio is not None and one.ratio < limits.least_sheet_share
    ]
    if low:
        yield Finding(
            NAME,
            "warning",
            "a GPU does far less than its data sheet says",
            tuple(_words(one, ratio) for one, ratio in low),
            max(limits.healthy_sheet_share / ratio for _, ratio in low),
            "look for other work on it, heat and a lowered power limit; else use another node",
        )


def _words(one: Ceiling, ratio: float) -> str:
    return f"{one.device}: {one.name} at {100 * ratio:.0f} % of the data sheet"


RULE = Rule(NAME, check)
