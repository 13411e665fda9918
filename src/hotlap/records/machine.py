"""The Machine: System, Software, Stack and the measured ceilings of one node."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.ceilings import Ceilings
from hotlap.records.software import Software, Stack
from hotlap.records.system import System


@dataclass(frozen=True, slots=True)
class Machine:
    system: System
    software: Software
    stack: Stack
    ceilings: Ceilings | None
    """None where they were not measured."""
    notes: tuple[str, ...]
    """What could not be found out, and why."""
