"""How fast a trial was, and whether two settings differ by more than chance.

Two kinds of noise: of the steps within a run, seen in blocks of consecutive steps, and from one
start of the same command to the next, seen where settings were measured more than once. The second
is usually the larger one, and every climb starts knowing little of it: so it begins with a guess
that weighs as much as two repetitions, and is corrected by each repetition that is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hotlap.chronometer.compare import block_means, student_t

TRIMMED = 0.125
"""Of the blocks, at either end: a neighbour's burst of work is not the training's."""
GUESSED_SPREAD = 0.015
GUESS_WEIGHT = 2


def typical_step(step_s: Sequence[float]) -> float:
    """Mean length of a step over blocks, without the slowest and the fastest of them."""
    return fmean(_trimmed(block_means(step_s)))


def within_error(step_s: Sequence[float]) -> float:
    """Standard error of `typical_step`, relative to it, from the spread of the blocks."""
    blocks = _trimmed(block_means(step_s))
    if len(blocks) < 2:
        return 0.0
    mean = fmean(blocks)
    spread = math.sqrt(sum((b - mean) ** 2 for b in blocks) / (len(blocks) - 1))
    # Trimming hides some of the spread; for normal noise, about this much.
    return 1.3 * spread / math.sqrt(len(blocks)) / mean


def _trimmed(blocks: list[float]) -> list[float]:
    n = int(len(blocks) * TRIMMED)
    return sorted(blocks)[n : len(blocks) - n]


@dataclass(frozen=True, slots=True)
class Between:
    """The relative spread from one start to the next, and what it rests on."""

    spread: float
    freedom: int

    @staticmethod
    def of(groups: Iterable[Sequence[float]]) -> Between:
        """From groups of rates, each group measured with the same settings."""
        squares, freedom = GUESS_WEIGHT * GUESSED_SPREAD**2, GUESS_WEIGHT
        for rates in groups:
            logs = [math.log(rate) for rate in rates]
            mean = fmean(logs)
            squares += sum((x - mean) ** 2 for x in logs)
            freedom += len(logs) - 1
        return Between(math.sqrt(squares / freedom), freedom)

    @property
    def t(self) -> float:
        """Student's t for a 95 % interval."""
        return student_t(self.freedom)


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates of settings that were measured once or more, with the error of each measurement."""

    rates: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def log_rate(self) -> float:
        """Mean of the logarithms."""
        return fmean(math.log(rate) for rate in self.rates)

    def variance(self, between: Between) -> float:
        """Of `log_rate`."""
        squares = [error**2 + between.spread**2 for error in self.errors]
        return fmean(squares) / len(squares)

    def interval(self, between: Between) -> Interval:
        """The rate."""
        value = math.exp(self.log_rate)
        half = between.t * math.sqrt(self.variance(between))
        return Interval(value, value * math.exp(-half), value * math.exp(half))


def ratio(faster: Measured, slower: Measured, between: Between) -> Interval:
    """How many times faster one is than the other."""
    value = math.exp(faster.log_rate - slower.log_rate)
    half = between.t * math.sqrt(faster.variance(between) + slower.variance(between))
    return Interval(value, value * math.exp(-half), value * math.exp(half))
