"""Two Runs side by side: the ratio of their steps, and whether it is outside the noise.

Steps of one run are not independent (a slow second makes many slow steps), so the noise is taken
from means of blocks of consecutive steps. What differs from one start of a command to the next is
not in it: two Runs of the same command can differ by more than the interval says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from hotlap.chronometer.merge import Window
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run

N_BLOCKS = 16
MIN_STEPS = 8
# Student's t, 97.5 %, by degrees of freedom; beyond the table the next smaller entry is used.
_T = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 14: 2.14, 20: 2.09}


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster B's step is than A's, with its 95 % interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def outside_noise(self) -> bool | None:
        """None where there are too few steps to say."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1.0 or self.high < 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare --json` writes."""

    a: str
    b: str
    ratio: Ratio
    outside_noise: bool | None
    notes: tuple[str, ...]


def compare(
    a: Run, b: Run, a_ranks: Sequence[RankRecord], b_ranks: Sequence[RankRecord]
) -> Comparison:
    """Compare two Runs that both have measured steps."""
    a_steps, b_steps = measured_steps(a, a_ranks), measured_steps(b, b_ranks)
    ratio = step_ratio(a_steps, b_steps)
    return Comparison(a.id, b.id, ratio, ratio.outside_noise, tuple(_notes(a, b)))


def measured_steps(run: Run, ranks: Sequence[RankRecord]) -> list[float]:
    """The length of each measured step, in seconds."""
    skip, n = run.steps.warmup, run.steps.warmup + run.steps.measured
    return Window(ranks, skip, n).lengths_s()


def step_ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Mean of A over mean of B, and the interval of that from the spread of blocks."""
    value = fmean(a) / fmean(b)
    if min(len(a), len(b)) < MIN_STEPS:
        return Ratio(value, None, None)
    a_error, a_freedom = _relative_error(a)
    b_error, b_freedom = _relative_error(b)
    error = math.hypot(a_error, b_error)
    freedom = min(a_freedom, b_freedom)
    t = student_t(freedom)
    return Ratio(value, value * math.exp(-t * error), value * math.exp(t * error))


def _relative_error(values: Sequence[float]) -> tuple[float, int]:
    """Standard error of the mean over the mean, from blocks; and its degrees of freedom."""
    blocks = block_means(values)
    return math.sqrt(variance(blocks) / len(blocks)) / fmean(blocks), len(blocks) - 1


def block_means(values: Sequence[float]) -> list[float]:
    """Means of consecutive steps, in blocks of two or more."""
    n_blocks = min(N_BLOCKS, max(1, len(values) // 2))
    size = len(values) / n_blocks
    return [fmean(values[round(i * size) : round((i + 1) * size)]) for i in range(n_blocks)]


def student_t(freedom: int) -> float:
    """For a 95 % interval."""
    return _T[max(known for known in _T if known <= freedom)]


def _notes(a: Run, b: Run) -> list[str]:
    notes = []
    for name in ("hostname", "cpu_model"):
        if a.machine.get(name) != b.machine.get(name):
            notes.append(
                f"not the same machine: {name} is {a.machine.get(name)} in A, "
                f"{b.machine.get(name)} in B"
            )
            break
    if a.command != b.command:
        notes.append("not the same command")
    if a.levers != b.levers:
        notes.append("not the same levers")
    if a.world_size != b.world_size:
        notes.append(f"not as many ranks: {a.world_size} in A, {b.world_size} in B")
    return notes
