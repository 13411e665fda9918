"""The rank file: every step of one training process, phase by phase.

One small file a rank on the shared file system, merged when read. Times in it are whole
nanoseconds: exact, and short as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

RANK_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class StepTable:
    """One entry a step; the phases of a step add up to its `total_ns`.

    On a device the phases are known for some steps only, and None for the others.
    """

    total_ns: tuple[int, ...]
    data_ns: tuple[int | None, ...]
    transfer_ns: tuple[int | None, ...]
    forward_ns: tuple[int | None, ...]
    backward_ns: tuple[int | None, ...]
    optimizer_ns: tuple[int | None, ...]
    other_ns: tuple[int | None, ...]
    is_probe: tuple[int, ...]
    """1 where finding the phases has made the step longer: its length is not a measurement."""
    end_ns: tuple[int, ...]
    """On the host's monotonic clock: what places a step among the power samples."""
    samples: tuple[int | None, ...]
    loss: tuple[float | None, ...]
    flops: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ValidationPass:
    total_ns: int
    batches: int
    full_batches: int | None
    """Batches in the whole set, where the loader knows it."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    rank: int
    world_size: int
    host: str
    pid: int
    process: dict[str, Any]
    """What the process is: torch, python, device."""
    ended: bool
    """It came to its own end; false where it was killed."""
    cut: bool
    """hotlap ended it after the number of steps asked for."""
    out_of_memory: bool
    seen: dict[str, int]
    """How often each kind of event was seen: what is told when no step was found."""
    first_load_ns: int | None
    steps: StepTable
    validations: tuple[ValidationPass, ...]
    device_peak_bytes: int | None
    device_reserved_bytes: int | None
    host_peak_bytes: int | None
    power: tuple[tuple[int, ...], ...]
    """Samples of [host clock ns, mJ since the driver started, mW]."""
    notes: tuple[str, ...]
    schema: int = RANK_SCHEMA

    def write(self, folder: Path) -> Path:
        """Write the rank file; the process id keeps independent trainings apart."""
        path = folder / f"rank-{self.rank:05d}-{self.host}-{self.pid}.json"
        write_json(path, self)
        return path

    @staticmethod
    def read(path: Path) -> RankRecord:
        """Read one rank file."""
        document = read_json(path)
        found = document.get("schema") if isinstance(document, dict) else None
        if found != RANK_SCHEMA:
            raise RecordError(f"{path} is not a rank file that this hotlap reads (schema {found})")
        try:
            return from_json(RankRecord, document, "")
        except RecordError as error:
            raise RecordError(f"{path} is damaged: {error}") from None
