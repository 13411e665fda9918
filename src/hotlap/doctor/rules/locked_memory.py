"""Little memory may be locked: InfiniBand needs to lock what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "locked_memory"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """An active port and a low limit."""
    limit = case.machine.system.memory.locked_limit_bytes
    is_active = any(port.is_active for port in case.machine.system.network.infiniband)
    if is_active and limit is not None and limit < limits.least_locked_bytes:
        yield Finding(
            NAME,
            "warning",
            f"only {limit / 2**20:.0f} MiB may be locked: InfiniBand may fail or stay unused",
            ("ulimit -l",),
            None,
            "raise the limit in the job (ulimit -l unlimited) or ask the operators",
        )


RULE = Rule(NAME, check)
