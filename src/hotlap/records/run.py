"""The Run: one execution of a command under the chronometer, as `run.json` holds it.

Unknown is None, never a guess. Times are seconds; of several ranks they are means over the ranks,
samples and energy are sums, memory is the worst rank's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

SCHEMA = 1
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")

Status = Literal["ok", "cut", "failed", "oom", "hung", "killed"]


@dataclass(frozen=True, slots=True)
class Steps:
    measured: int
    warmup: int


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over the measured steps."""

    mean: float
    std: float
    min: float
    median: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class Phases:
    """Mean seconds a step; they add up to the mean step."""

    data: float
    transfer: float
    forward: float
    backward: float
    optimizer: float
    other: float


@dataclass(frozen=True, slots=True)
class Validation:
    n: int
    """Passes over a validation set that were seen."""
    mean_s: float
    """Mean seconds a pass took."""
    batches: int
    full_set_s: float | None
    """Estimate for a pass over the whole set; differs from the mean where passes were cut short."""


@dataclass(frozen=True, slots=True)
class Memory:
    device_peak_bytes: int | None
    device_reserved_bytes: int | None
    host_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Power:
    """Of the GPUs that the ranks train on, over the measured steps."""

    mean_w: float | None
    peak_w: float | None
    energy_j: float | None
    samples_per_j: float | None


@dataclass(frozen=True, slots=True)
class Flops:
    """Model FLOPs of all ranks, 2 a multiply-add; MFU is against the chips' dense 16-bit peak.

    Of a chip without a known data sheet it is the rate that the doctor measured, if it did.
    """

    per_step: float | None
    per_s: float | None
    ceiling_per_s: float | None
    mfu: float | None


@dataclass(frozen=True, slots=True)
class RankSummary:
    rank: int
    host: str
    step_s: float | None
    samples: int | None


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    command: tuple[str, ...]
    status: Status
    exit_code: int | None
    """The command's own; minus the signal's number where a signal ended it."""
    started: str
    hotlap: str
    world_size: int | None
    machine: dict[str, Any]
    levers: dict[str, Any]
    total_s: float
    steps: Steps
    samples_per_s: float | None
    steps_per_s: float | None
    step_s: Spread | None
    phases_s: Phases | None
    spreads_s: dict[str, Spread]
    """Each phase over the measured steps, and `train`: the step without its data."""
    first_step_load_s: float | None
    validation: Validation | None
    memory: Memory
    power: Power
    flops: Flops
    loss: tuple[float | None, ...]
    ranks: tuple[RankSummary, ...]
    verdict: str
    notes: tuple[str, ...]
    schema: int = field(default=SCHEMA)

    def write(self, folder: Path) -> None:
        """Write `run.json` into a folder, atomically."""
        write_json(folder / "run.json", self)

    @staticmethod
    def read(folder: Path) -> Run:
        """Read the `run.json` of a folder."""
        path = folder / "run.json"
        document = read_json(path)
        found = document.get("schema") if isinstance(document, dict) else None
        if not isinstance(found, int):
            raise RecordError(f"{path} is damaged: it is not a Run (key 'schema' is {found!r})")
        if found > SCHEMA:
            raise RecordError(
                f"{path} was written by a newer hotlap: its schema is {found}, "
                f"this hotlap reads up to {SCHEMA}"
            )
        try:
            return from_json(Run, document, "")
        except RecordError as error:
            raise RecordError(f"{path} is damaged: {error}") from None
