"""What a climb is to better: the score that is made large, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotlap.records.ladder import Trial
from hotlap.tuner.bench import Score, memory_of, rate
from hotlap.tuner.noise import Interval
from hotlap.tuner.rungs import inverse, signed


@dataclass(frozen=True, slots=True)
class Objective:
    """One of `--objective`."""

    name: str
    score: Score
    better: str
    worse: str
    told: Callable[[Interval], str]
    """A gain of the score in words."""
    without: str
    """What the contribution of a kept lever is a factor of."""
    trial_s: float = 4.0
    """How long the measured steps of a trial take, if the guard does not need more of them."""


def _smallness(trial: Trial) -> float | None:
    memory = memory_of(trial)
    return 1 / memory if memory else None


def _samples_a_joule(trial: Trial) -> float | None:
    energy = trial.energy_per_sample_j
    return 1 / energy if energy else None


TIME = Objective("time", rate, "faster", "slower", signed, "what the step loses without it")
MEMORY = Objective(
    "memory",
    _smallness,
    "smaller",
    "larger",
    lambda gain: f"memory {signed(inverse(gain))}",
    "what memory grows by without it",
)
ENERGY = Objective(
    "energy",
    _samples_a_joule,
    "more samples a joule",
    "fewer samples a joule",
    lambda gain: f"samples a joule {signed(gain)}",
    "what the energy of a sample grows by without it",
    trial_s=12.0,  # the counter is read in long windows, also where a lever makes steps short
)
OBJECTIVES = {one.name: one for one in (TIME, MEMORY, ENERGY)}
