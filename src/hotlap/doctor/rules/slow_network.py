"""A job over several nodes without InfiniBand or a fast Ethernet: gradients outlast steps."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "slow_network"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Several nodes, no adapter at all, and a known speed that is low."""
    network = case.machine.system.network
    speeds = [one.speed_mbit_per_s for one in network.interfaces if one.speed_mbit_per_s]
    if case.n_nodes == 1 or not case.gpus or network.infiniband or not speeds:
        return
    if max(speeds) < limits.least_network_mbit_per_s:
        yield Finding(
            NAME,
            "warning",
            f"{case.n_nodes} nodes exchange gradients over {max(speeds) / 1e3:.0f} Gbit/s",
            ("no InfiniBand was found",),
            limits.least_network_mbit_per_s / max(speeds),
            "use nodes with a faster network, or fewer of them; accumulate gradients",
        )


RULE = Rule(NAME, check)
