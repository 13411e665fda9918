"""The guard: whether a trial is still the same training.

Baseline and trial start from the same seed and see the same data in the same order. So what the
levers claim can be checked:

    nothing      every loss is the baseline's, as far as the baseline repeats itself
    rounding     the first losses lie within the levers' bounds; later ones, which amplify every
                 difference, follow the same curve and rise and fall with the same batches;
                 gradients of the first updates have the same size, tensor by tensor, and every
                 parameter moves that moved before
    randomness   elsewhere drawn: the curves are the same but for chance

A changed number of steps or of samples a step is never the same training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import Fingerprint, Trial

MIN_STEPS = 30
FIRST_STEPS = 5
"""Steps in which rounding has not been amplified yet."""
MAX_GRADIENT_BOUND = 6e-3
"""Rounding of single numbers averages out over a tensor: its norm moves far less than they do."""
SMALL_GRADIENT = 1e-3
"""A tensor whose gradient is so much smaller than the largest one is left out: it may be noise."""
N_ERRORS = 4.0
"""How many standard errors apart two curves may lie."""
MIN_CORRELATION = 0.7
"""Between the ups and downs of two curves that saw the same batches."""
N_CORRELATED = 60
"""Steps from the start in which that is asked: trainings drift apart in the end."""
TREND = 7
"""Steps over which a curve is averaged to tell its ups and downs from its fall."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a set of levers says about itself."""

    changes: str
    bound: float
    new_randomness: bool

    @staticmethod
    def of(levers: Sequence[Lever], has_dropout: bool = False) -> Claim:
        """The claims of several levers together: the bounds add up."""
        kinds = {lever.changes for lever in levers}
        changes = next((kind for kind in ("maths", "rounding") if kind in kinds), "nothing")
        bound = sum(lever.bound for lever in levers)
        is_redrawn = any(
            lever.new_randomness or (has_dropout and lever.new_dropout) for lever in levers
        )
        return Claim(changes, bound, is_redrawn)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Same training or not, and what that rests on."""

    same: bool
    text: str


def judge(baselines: Sequence[Trial], trial: Trial, claim: Claim) -> Verdict:
    """Compare a trial that ran to its end with repetitions of the baseline."""
    first = baselines[0]
    if trial.n_steps != first.n_steps:
        return Verdict(False, f"{trial.n_steps} steps instead of {first.n_steps}")
    if claim.changes == "maths":
        return _judge_maths(first, trial)
    if not _same_samples(first, trial):
        return Verdict(
            False,
            f"{trial.samples_per_step:g} samples a step instead of {first.samples_per_step:g}",
        )
    pairs = _pairs(first.losses, trial.losses)
    if not pairs:
        return Verdict(False, "no loss to compare")
    known = f"{len(pairs)} steps" + ("" if len(pairs) >= MIN_STEPS else " only")
    own = _own_deviation(baselines)
    exact = _judge_exact(pairs, own, known)
    if exact.same or (claim.changes == "nothing" and not claim.new_randomness):
        return exact if exact.same else _with_fingerprint(exact, first, trial, 0.0)
    if claim.new_randomness:
        return _judge_curves(pairs, claim.bound, known)
    rounding = _judge_rounding(pairs, own, claim.bound, known)
    return _with_fingerprint(rounding, first, trial, claim.bound)


def _same_samples(first: Trial, trial: Trial) -> bool:
    a, b = first.samples_per_step, trial.samples_per_step
    return a is None or b is None or math.isclose(a, b, rel_tol=1e-6)


def _pairs(a: Sequence[float | None], b: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]


def _scale(pairs: Sequence[tuple[float, float]]) -> float:
    """The size of the losses, for deviations relative to it; a loss may pass through zero."""
    return max(fmean(abs(x) for x, _ in pairs), 1e-12)


def _deviations(pairs: Sequence[tuple[float, float]]) -> list[float]:
    scale = _scale(pairs)
    return [(y - x) / max(abs(x), scale) for x, y in pairs]


def _own_deviation(baselines: Sequence[Trial]) -> float:
    """How far the baseline's repetitions lie apart, relative; 0 where it repeats itself exactly."""
    first = baselines[0]
    others = [_pairs(first.losses, other.losses) for other in baselines[1:]]
    return max((abs(d) for pairs in others if pairs for d in _deviations(pairs)), default=0.0)


def _judge_exact(pairs: Sequence[tuple[float, float]], own: float, known: str) -> Verdict:
    deviations = _deviations(pairs)
    worst = max(map(abs, deviations))
    if worst == 0.0:
        return Verdict(True, f"bit for bit over {known}")
    if worst <= 2 * own:
        return Verdict(True, f"as close as the baseline to itself over {known} ({worst:.1e})")
    step = next(i for i, d in enumerate(deviations, 1) if abs(d) > 2 * own)
    x, y = pairs[step - 1]
    return Verdict(False, f"the loss of step {step} is {y:.7g} instead of {x:.7g}")


def _judge_rounding(
    pairs: Sequence[tuple[float, float]], own: float, bound: float, known: str
) -> Verdict:
    deviations = _deviations(pairs)
    for step, deviation in enumerate(deviations[:FIRST_STEPS], 1):
        if abs(deviation) > bound + 2 * own:
            x, y = pairs[step - 1]
            return Verdict(
                False,
                f"the loss of step {step} is {y:.7g} instead of {x:.7g}: "
                f"{abs(deviation):.1e} apart, {bound:.1e} is rounding",
            )
    return _judge_batches(pairs, bound) or _judge_curves(pairs, bound, known)


def _judge_batches(pairs: Sequence[tuple[float, float]], bound: float) -> Verdict | None:
    """Whether both saw the same batches: a hard batch is hard for either."""
    early = pairs[:N_CORRELATED]
    if len(early) < 2 * TREND:
        return None
    before = _ups_and_downs([x for x, _ in early])
    after = _ups_and_downs([y for _, y in early])
    sizes = [math.sqrt(fmean(x * x for x in values)) for values in (before, after)]
    if min(sizes) <= 2 * bound * _scale(early):
        return None  # batches differ by no more than rounding: they tell nothing
    together = fmean(x * y for x, y in zip(before, after, strict=True)) / (sizes[0] * sizes[1])
    if together >= MIN_CORRELATION:
        return None
    return Verdict(False, f"the losses do not rise and fall together (correlation {together:.2f})")


def _ups_and_downs(losses: Sequence[float]) -> list[float]:
    half = TREND // 2
    return [
        losses[i] - fmean(losses[i - half : i + half + 1]) for i in range(half, len(losses) - half)
    ]


def _judge_curves(pairs: Sequence[tuple[float, float]], bound: float, known: str) -> Verdict:
    """Whether two curves are one but for chance: the mean of their differences."""
    deviations = _deviations(pairs)
    mean = fmean(deviations)
    error = stdev(deviations) / math.sqrt(len(deviations)) if len(deviations) > 1 else 0.0
    allowed = bound + N_ERRORS * error
    worst = max(map(abs, deviations))
    if abs(mean) <= allowed:
        return Verdict(True, f"same curve over {known} (mean {mean:+.1e}, at most {worst:.1e})")
    return Verdict(
        False, f"the losses lie {mean:+.1e} off on average over {known}, {allowed:.1e} is chance"
    )


def _judge_maths(first: Trial, trial: Trial) -> Verdict:
    """The maths was changed, and allowed: it must train, and not worse by far."""
    before = [x for x in first.losses if x is not None]
    after = [x for x in trial.losses if x is not None]
    if not before or not after:
        return Verdict(False, "no loss to compare")
    n = max(1, min(len(before), len(after)) // 3)
    if fmean(after[-n:]) > fmean(before[:n]) + abs(fmean(before[:n])) * 0.1:
        return Verdict(False, f"the loss rises to {fmean(after[-n:]):.4g}")
    return Verdict(True, f"other maths, allowed: loss {fmean(after[-n:]):.4g} at the end")


def _with_fingerprint(verdict: Verdict, first: Trial, trial: Trial, bound: float) -> Verdict:
    """Losses that agree are not enough: one layer may stand still for long without showing."""
    if not verdict.same:
        return verdict
    problem = compare_fingerprints(first.fingerprints, trial.fingerprints, bound)
    return Verdict(False, problem) if problem else verdict


def compare_fingerprints(
    baseline: Sequence[Fingerprint], trial: Sequence[Fingerprint], bound: float
) -> str:
    """What differs between the first updates beyond rounding; empty where nothing does."""
    if not baseline or not trial:
        return ""
    for before, after in zip(baseline, trial, strict=False):
        # In later updates the weights differ a little too.
        allowed = min(bound, MAX_GRADIENT_BOUND) * (1 + 3 * before.update)
        problem = _compare_gradients(before.gradients, after.gradients, allowed)
        if problem:
            return f"update {before.update + 1}: {problem}"
    return _compare_movement(baseline, trial)


def _compare_gradients(before: Sequence[float], after: Sequence[float], allowed: float) -> str:
    if len(before) != len(after):
        return f"{len(after)} gradients instead of {len(before)}"
    largest = max(before, default=0.0)
    ratios = [b / a for a, b in zip(before, after, strict=True) if a > SMALL_GRADIENT * largest > 0]
    if not ratios:
        return ""
    # What scales gradients shows in the typical tensor and in their sum; rounding in one of them.
    sizes = (median(ratios), math.hypot(*after) / math.hypot(*before))
    scale = min(sizes, key=lambda size: abs(size - 1))
    if not abs(scale - 1) <= allowed:
        return f"gradients are {scale:.4f} times as large, {allowed:.1e} is rounding"
    odd = [ratio for ratio in ratios if not 0.5 <= ratio <= 2.0]
    return f"a gradient is {odd[0]:.2f} times as large" if odd else ""


def _compare_movement(baseline: Sequence[Fingerprint], trial: Sequence[Fingerprint]) -> str:
    """Whether a parameter stands still that moved in the baseline."""
    if len(baseline) < 2 or len(trial) < 2:
        return ""
    ends = (baseline[0].parameters, baseline[-1].parameters)
    trial_ends = (trial[0].parameters, trial[-1].parameters)
    if not len(ends[0]) == len(ends[1]) == len(trial_ends[0]) == len(trial_ends[1]):
        return ""
    moved = [a != b for a, b in zip(*ends, strict=True)]
    stands = [a == b for a, b in zip(*trial_ends, strict=True)]
    n = sum(m and s for m, s in zip(moved, stands, strict=True))
    return f"{n} of {len(moved)} parameters stand still that moved before" if n else ""
