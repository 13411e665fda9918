"""A GPU hangs on fewer PCIe lanes than it and its slot have: copies to it are slower by as much.

The gain is that of a step of copies alone. The generation is not looked at: it falls when idle.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "pcie_width"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Lanes now against the most that there can be."""
    narrow = [(gpu, now, most) for gpu in case.gpus if (now := gpu.pcie_width or 0)
              and (most := gpu.pcie_width_max or 0) > now]  # fmt: skip
    if narrow:
        yield Finding(
            NAME,
            "warning",
            f"{named(gpu for gpu, _, _ in narrow)} uses fewer PCIe lanes than it has",
            tuple(f"GPU {gpu.index}: {now} of {most} lanes" for gpu, now, most in narrow),
            max(most / now for _, now, most in narrow),
            "tell the operators: the card, its slot or a riser needs a look",
        )


RULE = Rule(NAME, check)
