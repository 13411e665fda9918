"""GPUs are joined by NVLink, and an all-reduce between them is slower than PCIe would be.

The gain is that of a step of communication alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "links_slow"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The best measured bus bandwidth of an all-reduce on one node."""
    ceilings, pairs = case.machine.ceilings, case.machine.system.gpu_pairs
    is_linked = bool(pairs) and all(pair.path == "NVLink" for pair in pairs)
    if ceilings is None or not is_linked or case.n_nodes > 1:
        return
    rates = [
        one.bus_bytes_per_s
        for one in ceilings.exchanges
        if one.operation == "all_reduce" and one.device == "cuda" and one.bus_bytes_per_s
    ]
    if rates and max(rates) < limits.least_nvlink_bus_bytes_per_s:
        yield Finding(
            NAME,
            "warning",
            f"an all-reduce over NVLink reaches {max(rates) / 1e9:.0f} GB/s",
            (f"{limits.least_nvlink_bus_bytes_per_s / 1e9:.0f} GB/s and more are usual",),
            limits.least_nvlink_bus_bytes_per_s / max(rates),
            "look at NCCL_DEBUG=INFO for the paths it chose, and at nvidia-smi nvlink --status",
        )


RULE = Rule(NAME, check)
