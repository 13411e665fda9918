"""The ladder: the trials of a climb in order, the rungs kept, and each rung's proof.

Trial    one short run with a set of levers
Rung     one lever with one value: what came of trying it
Proof    both trainings to more steps, on several seeds
Ladder   the whole climb, as `tune --json` writes it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

LADDER_SCHEMA = 1

State = Literal["ok", "oom", "crashed", "hung", "cut short", "too short", "diverged"]
"""Of a trial: how it ended; cut short is what the budget had no more time for, too short what ended
well after fewer steps than can be measured."""

RungState = Literal[
    "ok",
    "oom",
    "crashed",
    "hung",
    "cut short",
    "too short",
    "diverged",
    "different",
    "no effect",
    "not applicable",
    "not allowed",
    "not tried",
]
"""Of a rung: a trial's state, or why there was none, or that the training was not the same."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of one of the first updates, tensor by tensor."""

    update: int
    inputs: tuple[float, ...]
    """Sum of each tensor that went into the model since the update before."""
    gradients: tuple[float, ...]
    """Norms."""
    moved: tuple[bool, ...]
    """Whether each parameter is another one after the update."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A short run with a set of levers; its state is data."""

    levers: dict[str, str]
    seed: int
    state: State
    reason: str
    """Why it is not ok, in one sentence; empty where it is."""
    last_lines: tuple[str, ...]
    """Of the command's output, where it is not ok."""
    total_s: float
    n_steps: int
    """All steps that were made, warm-up included."""
    is_cut: bool
    """Whether hotlap ended it after these steps; else it came to its own end."""
    step_s: tuple[float, ...]
    """Length of each measured step."""
    samples_per_s: float | None
    """Steps a second where samples are unknown."""
    samples_per_step: float | None
    phases_s: dict[str, float]
    """Mean seconds a step of each phase; empty where they are unknown."""
    waits_for_host: bool
    """Whether the device stood idle in most steps until the host had launched its work."""
    losses: tuple[float | None, ...]
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    energy_per_sample_j: float | None
    mean_w: float | None
    fingerprints: tuple[Fingerprint, ...]
    done: dict[str, tuple[str, ...]]
    """By lever: what it changed in the training process."""
    failed: dict[str, str]
    """By lever: why it could not be applied."""
    run: str
    """The folder of its Run, empty where there is none."""
    samples: tuple[int, ...] = ()
    """Of each step, warm-up included, on all ranks; empty where they are unknown."""
    samples_by_rank: tuple[float, ...] = ()
    """`samples_per_step` of each rank; empty where they are unknown."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Samples a second with the interval of the measurement, and what else was measured."""

    samples_per_s: float
    low: float | None
    high: float | None
    memory_bytes: float | None = None
    energy_per_sample_j: float | None = None


@dataclass(frozen=True, slots=True)
class Rung:
    lever: str
    value: str
    state: RungState
    samples_per_s: float | None
    low: float | None
    high: float | None
    ratio: float | None
    """How many times better than the baseline it is, by the objective."""
    gain: float | None
    """Against the settings that were the best when it was tried."""
    gain_low: float | None
    gain_high: float | None
    memory_bytes: int | None
    energy_per_sample_j: float | None
    loss_verdict: str
    kept: bool
    reason: str
    contribution: float | None = None
    """What the final settings lose without it; None where it was not kept or not measured."""
    contribution_low: float | None = None
    contribution_high: float | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """What training to the end came to."""

    n_steps: int
    seeds: tuple[int, ...]
    baseline: tuple[float, ...]
    """Final loss of each seed."""
    tuned: tuple[float, ...]
    difference: float
    """Tuned minus baseline, with its 90 % interval."""
    low: float
    high: float
    margin: float
    """What counts as equal."""
    equivalent: bool


@dataclass(frozen=True, slots=True)
class Ladder:
    command: tuple[str, ...]
    started: str
    hotlap: str
    objective: str
    unit: str
    """'samples/s', or 'steps/s' where samples are unknown."""
    status: Literal["complete", "out of budget", "interrupted"]
    baseline: Rate
    best: Rate
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    levers: dict[str, str]
    rungs: tuple[Rung, ...]
    total_s: float
    notes: tuple[str, ...]
    edits: tuple[str, ...] = ()
    diff: str = ""
    proof: Proof | None = None
    first_baseline: Rate | None = None
    """The baseline as it was at the start; `baseline` is of its last measurements."""
    budget_s: float | None = None
    further_try_s: float | None = None
    """How long the shortest try takes that there was no time for; None where none was left out."""
    schema: int = field(default=LADDER_SCHEMA)

    def write(self, path: Path) -> None:
        """Write it, atomically."""
        write_json(path, self)

    @staticmethod
    def read(path: Path) -> Ladder:
        """Read a ladder that was written."""
        document = read_json(path)
        if not isinstance(document, dict) or document.get("schema") != LADDER_SCHEMA:
            raise RecordError(f"{path} is no ladder that this hotlap reads")
        return from_json(Ladder, document, "")
