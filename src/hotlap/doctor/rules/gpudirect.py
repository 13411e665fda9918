"""InfiniBand adapters may not reach GPU memory themselves: the module for it is not loaded.

A note, for newer drivers can do it without the module (DMA-BUF); NCCL_DEBUG=INFO tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "gpudirect"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Several nodes, an active port, GPUs, and no module."""
    network = case.machine.system.network
    is_active = any(port.is_active for port in network.infiniband)
    if case.n_nodes > 1 and is_active and case.gpus and network.is_gpudirect is False:
        yield Finding(
            NAME,
            "note",
            "the module nvidia_peermem is not loaded",
            ("copies between nodes may go through host memory",),
            None,
            "run once with NCCL_DEBUG=INFO and look for GDRDMA; else ask the operators",
        )


RULE = Rule(NAME, check)
