"""Rate, memory and power for each batch size, up to the one that does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.errors import UsageError
from hotlap.tuner.bench import memory_of, rate

if TYPE_CHECKING:
    from hotlap.tuner.tune import Tuning

MAX_DOUBLINGS = 12


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One batch size."""

    factor: int
    """Of the script's own batch."""
    samples_per_step: float | None
    state: str
    reason: str
    """Why it is not ok."""
    samples_per_s: float | None
    memory_bytes: int | None
    mean_w: float | None
    energy_per_sample_j: float | None


def sweep_batch(tuning: Tuning) -> list[SweepPoint]:
    """Double the batch until it does not fit, or time is up."""
    if not any(lever.name == "batch_size" for lever in tuning.levers):
        raise UsageError("there is no lever batch_size to sweep with")
    points: list[SweepPoint] = []
    with tuning.scratch() as folder:
        bench = tuning.bench(folder, None)
        for doubling in range(MAX_DOUBLINGS):
            factor = 2**doubling
            settings = {"batch_size": f"x{factor}"} if factor > 1 else {}
            if points and not bench.has_time_for(1):
                break
            trial = bench.measure(settings)
            points.append(
                SweepPoint(
                    factor,
                    trial.samples_per_step,
                    trial.state,
                    trial.reason,
                    rate(trial),
                    memory_of(trial) if trial.state == "ok" else None,
                    trial.mean_w,
                    trial.energy_per_sample_j,
                )
            )
            if trial.state != "ok" or (factor > 1 and "batch_size" not in trial.done):
                break
    tuning.forget_trials()
    return points
