"""Pinned copies to the GPU are slow: an old or narrow PCIe, a far NUMA node, a virtual machine.

The gain is that of a step of copies alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "host_to_device"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The measured rate."""
    ceilings = case.machine.ceilings
    rate = ceilings.rate("host to device, pinned") if ceilings else None
    if rate is None or rate >= limits.least_pinned_bytes_per_s:
        return
    yield Finding(
        NAME,
        "advice",
        f"copies to the GPU reach {rate / 1e9:.1f} GB/s",
        (f"PCIe 3 with 16 lanes reaches {limits.least_pinned_bytes_per_s / 1e9:.0f} and more",),
        limits.least_pinned_bytes_per_s / rate,
        "send small types (uint8 images, int32 tokens) and make them large on the GPU",
    )


RULE = Rule(NAME, check)
