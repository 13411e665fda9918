"""NCCL_IB_DISABLE=1 while InfiniBand is there: NCCL goes over sockets.

The gain is that of a step of communication: all ports together over the fastest interface.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, is_on
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "infiniband_disabled"
VARIABLE = "NCCL_IB_DISABLE"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The variable, and a port that is up."""
    network = case.machine.system.network
    active = [port for port in network.infiniband if port.is_active]
    if not is_on(case.environment.get(VARIABLE)) or not active or not case.gpus:
        return
    rates = [port.rate_gbit_per_s for port in active if port.rate_gbit_per_s]
    speeds = [one.speed_mbit_per_s for one in network.interfaces if one.speed_mbit_per_s]
    yield Finding(
        NAME,
        "warning",
        "NCCL is told not to use InfiniBand",
        (f"{VARIABLE}=1, {len(active)} active ports of {max(rates, default=0):.0f} Gbit/s",),
        1e3 * sum(rates) / max(speeds) if rates and speeds else None,
        f"unset {VARIABLE}",
    )


RULE = Rule(NAME, check)
