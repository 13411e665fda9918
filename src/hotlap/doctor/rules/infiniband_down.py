"""There are InfiniBand ports, and none is active: ranks of several nodes fall back to Ethernet."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "infiniband_down"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """No port of any adapter is up."""
    ports = case.machine.system.network.infiniband
    if ports and not any(port.is_active for port in ports):
        yield Finding(
            NAME,
            "warning" if case.n_nodes > 1 else "note",
            "no InfiniBand port is active",
            tuple(f"{port.device}, port {port.port}: down" for port in ports),
            None,
            "tell the operators, or train on other nodes",
        )


RULE = Rule(NAME, check)
