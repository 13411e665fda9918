"""The nouns as data: frozen dataclasses that know how to be written to and read from disk."""

from hotlap.records.rank import RankRecord, StepTable, ValidationPass
from hotlap.records.run import (
    PHASES,
    SCHEMA,
    Flops,
    Memory,
    Phases,
    Power,
    RankSummary,
    Run,
    Spread,
    Steps,
    Validation,
)
from hotlap.records.store import RunStore

__all__ = [
    "PHASES",
    "SCHEMA",
    "Flops",
    "Memory",
    "Phases",
    "Power",
    "RankRecord",
    "RankSummary",
    "Run",
    "RunStore",
    "Spread",
    "StepTable",
    "Steps",
    "Validation",
    "ValidationPass",
]
