"""More processes want to run than there are CPUs: steps are slow and figures vary."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "busy_host"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The load of the last minute over the CPUs of the machine."""
    cpu = case.machine.system.cpu
    if cpu.load_1min is None or not cpu.n_cpus:
        return
    if cpu.load_1min > limits.most_load_per_cpu * cpu.n_cpus:
        yield Finding(
            NAME,
            "warning",
            f"{cpu.load_1min:.0f} processes want to run on {n_of(cpu.n_cpus, 'CPU')}",
            ("load of the last minute",),
            None,
            "measure when the machine is quiet, or ask for a node of your own (--exclusive)",
        )


RULE = Rule(NAME, check)
