"""The Finding: something the doctor saw, with its evidence, its worth and its cure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json
from hotlap.records.machine import Machine
from hotlap.records.profile import Profile
from hotlap.records.run import Run
from hotlap.records.severity import Severity

DIAGNOSIS_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    severity: Severity
    summary: str
    evidence: tuple[str, ...]
    """What was seen, with its figures."""
    gain: float | None
    """Expected step time before over after: 1.0 is none, 2.0 is half the time; None if unknown."""
    cure: str
    """A lever, an edit with file and line, or a setting of the job."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that the step is spent on."""

    name: str
    share: float
    """Of the step."""
    evidence: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `doctor --json` writes."""

    hotlap: str
    machine: Machine
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    run: Run | None = None
    """Of the command that was run, where there was one."""
    profile: Profile | None = None
    """Of a second run of the command."""
    limits: tuple[Limit, ...] = ()
    """What the step is spent on, the largest part first; no more than all of it."""
    schema: int = field(default=DIAGNOSIS_SCHEMA)

    def write(self, path: Path) -> None:
        """Write it, atomically."""
        write_json(path, self)

    @staticmethod
    def read(path: Path) -> Diagnosis:
        """Read a diagnosis that was written."""
        document = read_json(path)
        if not isinstance(document, dict) or document.get("schema") != DIAGNOSIS_SCHEMA:
            raise RecordError(f"{path} is no diagnosis that this hotlap reads")
        try:
            return from_json(Diagnosis, document, "")
        except RecordError as error:
            raise RecordError(f"{path} is damaged: {error}") from None
