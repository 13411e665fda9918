"""Rate, memory and power for each batch size, up to the one that does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.errors import UsageError
from hotlap.records.ladder import RungState, Trial
from hotlap.tuner.bench import memory_of, rate

if TYPE_CHECKING:
    from hotlap.tuner.tune import Tuning

MAX_DOUBLINGS = 12
LEVER = "batch_size"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One batch size."""

    factor: int
    """Of the script's own batch."""
    samples_per_step: float | None
    state: RungState
    reason: str
    """Why it is not ok."""
    samples_per_s: float | None
    memory_bytes: int | None
    mean_w: float | None
    energy_per_sample_j: float | None


def sweep_batch(tuning: Tuning) -> list[SweepPoint]:
    """Double the batch until it does not fit, or time is up."""
    if not any(lever.name == LEVER for lever in tuning.levers):
        raise UsageError(f"there is no lever {LEVER} to sweep with")
    points: list[SweepPoint] = []
    with tuning.scratch() as folder:
        bench = tuning.bench(folder, None)
        for doubling in range(MAX_DOUBLINGS):
            factor = 2**doubling
            if points and not bench.has_time_for(1):
                points.append(without_figures(factor, "not tried", "the budget is too short"))
                break
            settings = {LEVER: f"x{factor}"} if factor > 1 else {}
            points.append(point_of(factor, bench.measure(settings)))
            if points[-1].state != "ok":
                break
    tuning.forget_trials()
    return points


def point_of(factor: int, trial: Trial) -> SweepPoint:
    """What a trial with so many times the script's batch came to."""
    if trial.state != "ok":
        return without_figures(factor, trial.state, trial.reason)
    if factor > 1 and LEVER not in trial.done:
        reason = trial.failed.get(LEVER, "it found nothing to change")
        return without_figures(factor, "no effect", reason)
    return SweepPoint(
        factor,
        trial.samples_per_step,
        "ok",
        "",
        rate(trial),
        memory_of(trial),
        trial.mean_w,
        trial.energy_per_sample_j,
    )


def without_figures(factor: int, state: RungState, reason: str) -> SweepPoint:
    """Of a batch size that was not measured to the end: a part of a trial says nothing."""
    return SweepPoint(factor, None, state, reason, None, None, None, None)
