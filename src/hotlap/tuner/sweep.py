"""Rate, memory and power for each batch size, up to the one that does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.errors import UsageError
from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import RungState, Trial
from hotlap.tuner.bench import Bench, memory_of, rate
from hotlap.tuner.trial import why_not_tuned

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


def sweep_batch(tuning: Tuning) -> Iterator[SweepPoint]:
    """Double the batch until it does not fit, or time is up; each point as soon as it is there."""
    lever = next((lever for lever in tuning.levers if lever.name == LEVER), None)
    if lever is None:
        raise UsageError(f"there is no lever {LEVER} to sweep with")
    with tuning.scratch() as folder:
        bench = tuning.bench(folder, None)
        try:
            first = bench.measure({})
            if first.state != "ok":
                raise UsageError(why_not_tuned(first))
            tuning.learn(first)
            yield point_of(1, first)
            yield from _larger(bench, lever, tuning)
        finally:
            tuning.forget_runs()


def _larger(bench: Bench, lever: Lever, tuning: Tuning) -> Iterator[SweepPoint]:
    """All batches but the script's own."""
    workload = tuning.workload
    decision = lever.applies(workload)
    if not decision.yes:
        yield without_figures(2, "not applicable", decision.reason)
        return
    smallest, *_ = lever.values(workload)
    for doubling in range(1, MAX_DOUBLINGS):
        factor = 2**doubling
        if not bench.has_time_for(1):
            yield without_figures(factor, "not tried", "the budget is too short")
            return
        # The first value says where batches come from.
        value = smallest.replace("x2", f"x{factor}", 1)
        trial = bench.measure({LEVER: value})
        if trial.state in ("crashed", "too short") and tuning.start_over():
            trial = bench.measure({LEVER: value})  # what the one before wrote was in its way
        point = point_of(factor, trial)
        yield point
        if point.state != "ok":
            return


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
