"""The guard: whether a trial is still the same training.

Baseline and trial start from the same seed and see the same data in the same order. So what the
levers claim can be checked:

    nothing      every loss is the baseline's; where the baseline does not repeat itself, what is
                 asked of rounding
    rounding     the model gets the same inputs; gradients of the first update have the same size;
                 every parameter moves that moved before; losses lie no further off than the
                 levers' bounds and than rounding drives this training apart
    randomness   elsewhere drawn: the curves are the same but for chance, every parameter moves
                 that moved before, no update is left out; where only masks of dropout are others,
                 the model gets the same inputs

How far rounding drives a training apart is measured on the training itself: its baseline is run
once more with noise of the size of rounding on weights and gradients (`levers/common/noise.py`).
A changed number of steps or of samples a step is never the same training, and of fewer than 30
losses nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import Fingerprint, State, Trial
from hotlap.wording import n_of

MIN_STEPS = 30
N_NOISES = 10.0
"""How many times further than the noisy baseline rounding may go: that is one draw, and growth is
exponential. Losses far apart are caught here; what is near is left to the first updates."""
LAST_DIGITS = 1e-6
"""Of a loss in fp32: two runs may differ there though their first steps happen to be the same."""
DRIVEN_APART = 2e-2
"""Once rounding alone drives losses this far apart, single ones tell nothing; curves still do."""
MAX_GRADIENT_BOUND = 6e-3
"""Rounding of single numbers averages out over a tensor: its norm moves far less than they do."""
N_UNTIL_MODELS_SHOW = 3
"""Updates after which noise has changed whatever one model makes for another."""
SMALL_GRADIENT = 1e-3
"""A tensor whose gradient is so much smaller than the largest one is left out: it may be noise."""
LAST_BATCHES = 0.25
"""Of all samples: the last batch of each epoch may be left out, or be a small one."""
N_ERRORS = 4.0
"""How many standard errors apart two curves may lie."""
CORRELATED_STEPS = 5
"""Deviations of neighbouring steps are alike: so many of them tell as much as one."""
SAME_START = 1e-4
"""How far first losses of one command may lie apart, relative, where it starts from the same files.
"""
UNTIMELY: tuple[State, ...] = ("hung", "cut short")
"""Ends of a trial that say nothing of its training."""
RISE = 0.1
"""Of the loss, above which another maths does not train."""
LEAST_FALL = 0.5
"""Of the way that the baseline's loss falls: another maths has to come so far at least."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a set of levers says about itself."""

    changes: str
    bound: float
    new_randomness: bool
    new_dropout: bool = False
    """Masks of dropout are others, and nothing else that is drawn."""

    @staticmethod
    def of(levers: Sequence[Lever], has_dropout: bool = False) -> Claim:
        """The claims of several levers together: the bounds add up."""
        kinds = {lever.changes for lever in levers}
        changes = next((kind for kind in ("maths", "rounding") if kind in kinds), "nothing")
        bound = sum(lever.bound for lever in levers)
        new_randomness = any(lever.new_randomness for lever in levers)
        new_dropout = has_dropout and any(lever.new_dropout for lever in levers)
        return Claim(changes, bound, new_randomness, new_dropout and not new_randomness)

    @property
    def draws_anew(self) -> bool:
        """Whether single losses tell nothing, because random numbers are others."""
        return self.new_randomness or self.new_dropout

    def needs_noise(self, repeats_itself: bool) -> bool:
        """Whether it is judged by what noise does: to losses, or to inputs that a model makes."""
        if self.new_randomness or self.changes == "maths":
            return False
        return self.new_dropout or self.changes == "rounding" or not repeats_itself


@dataclass(frozen=True, slots=True)
class Verdict:
    """Same training or not, and what that rests on."""

    same: bool
    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """What a trial is compared with."""

    baselines: Sequence[Trial]
    """Repetitions of the baseline, the first of which is the one that counts."""
    noisy: Trial | None = None
    """The baseline with noise of the size of rounding; None where it could not be had."""
    known_deviation: float = 0.0
    """How far repetitions of this training were seen apart before, relative."""

    @property
    def own_deviations(self) -> list[float]:
        """How far the repetition lies off, relative and step by step."""
        both = self.baselines[:2]
        pairs = _pairs(*(one.losses for one in both)) if len(both) == 2 else []
        return _deviations(pairs) if pairs else []

    @property
    def own_deviation(self) -> float:
        """How far repetitions lie apart at most; 0 where they are exact."""
        return max(map(abs, self.own_deviations), default=self.known_deviation)


def judge(reference: Reference, trial: Trial, claim: Claim) -> Verdict:
    """Compare a trial that ran to its end with the baseline."""
    first = reference.baselines[0]
    is_other_batch = claim.changes == "maths" and not _same_samples(first, trial)
    problem = _other_samples(first, trial) if is_other_batch else _other_steps(first, trial)
    problem = problem or _other_shares(first, trial)
    if problem:
        return Verdict(False, problem)
    if claim.changes == "maths":
        return _judge_maths(first, trial)
    if not _same_samples(first, trial):
        return Verdict(False, f"{_n_samples(trial)} samples a step instead of {_n_samples(first)}")
    pairs = _pairs(first.losses, trial.losses)
    known = n_of(len(pairs), "step")
    if len(pairs) < MIN_STEPS:
        return Verdict(False, f"the losses of {known} can be compared, {MIN_STEPS} are needed")
    exact = _judge_exact(pairs, known)
    is_to_be_exact = claim.changes == "nothing" and not claim.draws_anew
    if exact.same or (is_to_be_exact and not reference.own_deviation):
        return exact
    problem = _first_updates(reference, trial, claim)
    if problem:
        return Verdict(False, problem)
    if claim.draws_anew:
        return _judge_curves(pairs, claim.bound, [], known)
    return _judge_steps(reference, pairs, claim, known)


def starts_alike(first: Trial, again: Trial) -> bool:
    """Whether a repetition of a command began as the first run did: it may have left files."""
    if again.state in UNTIMELY:
        return True
    if again.state != "ok" or _other_steps(first, again):
        return False
    first_losses = _pairs(first.losses, again.losses)[:1]
    return all(abs(one) <= SAME_START for one in _deviations(first_losses))


def _other_steps(first: Trial, trial: Trial) -> str:
    shorter, longer = sorted((first, trial), key=lambda one: one.n_steps)
    if shorter.n_steps < longer.n_steps and not shorter.is_cut:
        return f"{n_of(trial.n_steps, 'step')} instead of {first.n_steps}"
    return ""


def _other_samples(first: Trial, trial: Trial) -> str:
    """Whether trainings with batches of different sizes end after different numbers of samples."""
    if first.is_cut or trial.is_cut:
        return ""
    before, after = (one.n_steps * (one.samples_per_step or 0.0) for one in (first, trial))
    if math.isclose(before, after, rel_tol=LAST_BATCHES):
        return ""
    return f"{after:,.0f} samples instead of {before:,.0f}"


def _other_shares(first: Trial, trial: Trial) -> str:
    """Whether some ranks have larger batches than before and others have not."""
    both = zip(first.samples_by_rank, trial.samples_by_rank, strict=False)
    growth = [after / before for before, after in both if before]
    if not growth or math.isclose(min(growth), max(growth), rel_tol=LAST_BATCHES):
        return ""
    return f"batches of the ranks are {min(growth):g} to {max(growth):g} times as large as before"


# Losses ---------------------------------------------------------------------------------------


def _same_samples(first: Trial, trial: Trial) -> bool:
    """Step by step where they are counted: how many last batches a mean holds is by chance."""
    if first.samples and trial.samples:
        return all(a == b for a, b in zip(first.samples, trial.samples, strict=False))
    a, b = first.samples_per_step, trial.samples_per_step
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6)


def _n_samples(trial: Trial) -> str:
    return "unknown" if trial.samples_per_step is None else f"{trial.samples_per_step:g}"


def _pairs(a: Sequence[float | None], b: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]


def _deviations(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Relative to the loss, or to the size of all losses: a loss may pass through zero."""
    scale = max(fmean(abs(x) for x, _ in pairs), 1e-12)
    return [(y - x) / max(abs(x), scale) for x, y in pairs]


def _judge_exact(pairs: Sequence[tuple[float, float]], known: str) -> Verdict:
    step = next((i for i, (x, y) in enumerate(pairs, 1) if x != y), None)
    if step is None:
        return Verdict(True, f"bit for bit over {known}")
    x, y = pairs[step - 1]
    return Verdict(False, f"the loss of step {step} is {y:.7g} instead of {x:.7g}")


def _judge_steps(
    reference: Reference, pairs: Sequence[tuple[float, float]], claim: Claim, known: str
) -> Verdict:
    """No loss further off than the bound, and than noise or a repetition drives them apart."""
    first, noisy, own = reference.baselines[0], reference.noisy, reference.own_deviations
    noise = _deviations(_pairs(first.losses, noisy.losses)) if noisy else []
    for step, deviation in enumerate(_deviations(pairs), 1):
        seen = (*noise[: step + 1], *own[: step + 1])
        driven = max(map(abs, seen), default=reference.known_deviation)
        if driven > DRIVEN_APART:
            break
        allowed = max(claim.bound, LAST_DIGITS) + N_NOISES * driven
        if abs(deviation) > allowed:
            x, y = pairs[step - 1]
            return Verdict(
                False,
                f"the loss of step {step} is {y:.7g} instead of {x:.7g}: {abs(deviation):.1e} "
                f"apart, {allowed:.1e} may come of rounding",
            )
    return _judge_curves(pairs, claim.bound, noise or own, known)


def _judge_curves(
    pairs: Sequence[tuple[float, float]], bound: float, noise: Sequence[float], known: str
) -> Verdict:
    """Whether two curves are one but for chance: the mean of their differences."""
    deviations = _deviations(pairs)
    mean = fmean(deviations)
    allowed = bound + N_ERRORS * max(_chance(deviations), _chance(noise))
    worst = max(map(abs, deviations))
    if abs(mean) <= allowed:
        return Verdict(True, f"same curve over {known} (mean {mean:+.1e}, at most {worst:.1e})")
    return Verdict(
        False, f"the losses lie {mean:+.1e} off on average over {known}, {allowed:.1e} is chance"
    )


def _chance(deviations: Sequence[float]) -> float:
    """Standard error of the mean of deviations."""
    n_told = max(len(deviations) / CORRELATED_STEPS, 1.0)
    return stdev(deviations) / math.sqrt(n_told) if len(deviations) > 1 else 0.0


def _judge_maths(first: Trial, trial: Trial) -> Verdict:
    """The maths was changed, and allowed: it must train, and not worse by far."""
    before = [x for x in first.losses if x is not None]
    after = [x for x in trial.losses if x is not None]
    if not before or not after:
        return Verdict(False, "no loss to compare")
    n_steps = min(len(before), len(after))
    n = max(1, n_steps // 3)
    thirds = before[:n], before[n_steps - n : n_steps], after[-n:]
    start, end, last = map(fmean, thirds)
    if last > start + RISE * abs(start):
        return Verdict(False, f"the loss rises to {last:.4g}")
    chance = N_ERRORS * max(map(_wobble, thirds))
    if start - end > chance and last > start - LEAST_FALL * (start - end) + chance:
        return Verdict(
            False, f"the loss falls to {last:.4g} only, where it fell from {start:.4g} to {end:.4g}"
        )
    still = _compare_movement(first.fingerprints, trial.fingerprints)
    told = f"other maths, allowed: loss {last:.4g} at the end"
    return Verdict(True, f"{told}; {still}" if still else told)


def _wobble(losses: Sequence[float]) -> float:
    """Standard error of the mean of losses that fall: from one to the next, which hardly shows."""
    steps = [b - a for a, b in pairwise(losses)]
    return stdev(steps) / math.sqrt(2 * len(losses)) if len(steps) > 1 else 0.0


# The first updates ----------------------------------------------------------------------------


def _first_updates(reference: Reference, trial: Trial, claim: Claim) -> str:
    """What differs in inputs, gradients and movement beyond rounding; empty where nothing does.

    Losses that agree are not enough: one layer may stand still for long without showing, and in a
    training that amplifies every difference they say little about the batches.
    """
    before, after = reference.baselines[0].fingerprints, trial.fingerprints
    if not before or not after:
        return ""
    noisy = reference.noisy.fingerprints if reference.noisy is not None else ()
    problem = "" if claim.new_randomness else _compare_inputs(before, after, noisy)
    if problem:
        return problem
    if claim.draws_anew:  # single gradients are others, and an expert may get no sample in a step
        return _compare_standstill(before, after)
    # What claims to change nothing is here only where the baseline does not repeat itself.
    is_exact = claim.changes == "nothing"
    allowed = MAX_GRADIENT_BOUND if is_exact else min(claim.bound, MAX_GRADIENT_BOUND)
    problem = _compare_gradients(before[0].gradients, after[0].gradients, allowed)
    return problem or _compare_movement(before, after)


def _compare_inputs(
    before: Sequence[Fingerprint], after: Sequence[Fingerprint], noisy: Sequence[Fingerprint]
) -> str:
    """Whether the model saw the same batches."""
    until = _n_of_data(before, noisy)
    for i, (a, b) in enumerate(zip(before[:until], after, strict=False)):
        if len(a.inputs) != len(b.inputs):
            return f"{len(b.inputs)} inputs in step {i + 1} instead of {len(a.inputs)}"
        # What noise on the gradients changes is made by a model, as a GAN's pictures, and no data.
        reference = noisy[i].inputs if i < len(noisy) else a.inputs
        for x, y, z in zip(a.inputs, b.inputs, reference, strict=False):
            if _is_close(x, z) and not _is_close(x, y):
                return f"the model's input in step {i + 1} is another one"
    return ""


def _n_of_data(before: Sequence[Fingerprint], noisy: Sequence[Fingerprint]) -> int:
    """How many of the first updates have inputs that no choice of the model has led to.

    An agent's actions choose what it sees next. Rounding flips one of them sooner or later: by
    noise in some update, by a lever a few before or after it. A GAN's pictures are others from the
    first updates on, always at the same places.
    """
    known: set[int] = set()
    for i, (a, z) in enumerate(zip(before, noisy, strict=False)):
        both = enumerate(zip(a.inputs, z.inputs, strict=False))
        changed = {place for place, (x, y) in both if not _is_close(x, y)}
        is_new = i >= N_UNTIL_MODELS_SHOW and not changed <= known
        if is_new or len(a.inputs) != len(z.inputs):
            return i // 2
        known |= changed
    return len(before)


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))


def _compare_gradients(before: Sequence[float], after: Sequence[float], allowed: float) -> str:
    if len(before) != len(after):
        return f"{len(after)} gradients in the first update instead of {len(before)}"
    largest = max(before, default=0.0)
    ratios = [b / a for a, b in zip(before, after, strict=True) if a > SMALL_GRADIENT * largest > 0]
    if not ratios:
        return ""
    # What scales gradients shows in the typical tensor and in their sum; rounding in one of them.
    sizes = (median(ratios), math.hypot(*after) / math.hypot(*before))
    scale = min(sizes, key=lambda size: abs(size - 1))
    if not abs(scale - 1) <= allowed:
        return f"the first gradients are {scale:.4f} times as large, {allowed:.1e} is rounding"
    odd = [ratio for ratio in ratios if not 0.5 <= ratio <= 2.0]
    return f"one of the first gradients is {odd[0]:.2f} times as large" if odd else ""


def _compare_movement(before: Sequence[Fingerprint], after: Sequence[Fingerprint]) -> str:
    """Whether a parameter stands still in an update, or for ever, and in the baseline did not.

    One that every update moves has to move in each: others, as of an expert without a sample or of
    a weight in half precision, stand still by chance.
    """
    by_size: dict[int, list[tuple[bool, ...]]] = {}  # which tells one optimizer from another
    for one in before:
        by_size.setdefault(len(one.moved), []).append(one.moved)
    steady = {n: [all(moves) for moves in zip(*moved, strict=True)] for n, moved in by_size.items()}
    for i, (was, now) in enumerate(zip(before, after, strict=False), 1):
        both = zip(steady[len(was.moved)], now.moved, strict=False)
        n = sum(always and not moves for always, moves in both)
        if n:
            return f"{n} of {len(was.moved)} parameters stand still in update {i}"
    return _never_moving(before, after)


def _compare_standstill(before: Sequence[Fingerprint], after: Sequence[Fingerprint]) -> str:
    """Whether a parameter never moves that moved in the baseline, or none moves in an update."""
    for i, (was, now) in enumerate(zip(before, after, strict=False), 1):
        if any(was.moved) and now.moved and not any(now.moved):
            return f"no parameter moves in update {i}"
    return _never_moving(before, after)


def _never_moving(before: Sequence[Fingerprint], after: Sequence[Fingerprint]) -> str:
    ever = [[any(moves) for moves in zip(*_moves(side), strict=False)] for side in (before, after)]
    n = sum(a and not b for a, b in zip(*ever, strict=False))
    return f"{n} of {len(ever[0])} parameters do not move" if n else ""


def _moves(fingerprints: Sequence[Fingerprint]) -> list[tuple[bool, ...]]:
    """Of all updates of the optimizer that makes the first one."""
    known = [one.moved for one in fingerprints if one.moved]
    return [moved for moved in known if len(moved) == len(known[0])]
