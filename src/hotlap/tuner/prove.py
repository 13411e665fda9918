"""Proof over a longer way: baseline and winner to N steps, on several seeds.

Each seed is trained with and without the levers. The final loss of a training is the mean over its
last tenth. Equivalent is what lies, with its whole 90 % interval, within a margin that is said
beforehand: a fiftieth of the loss, or the spread between seeds if that is larger, since a
difference below what another seed makes is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from hotlap.errors import UsageError
from hotlap.records.ladder import Proof, Trial

if TYPE_CHECKING:
    from hotlap.tuner.tune import Tuning

MARGIN = 0.02
# Student's t, 95 % one-sided, by degrees of freedom.
_T90 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83}


def prove(tuning: Tuning, levers: Mapping[str, str], n_steps: int, n_seeds: int) -> Proof:
    """Train both to N steps on every seed."""
    seeds = tuple(range(n_seeds))
    finals: dict[bool, list[float]] = {False: [], True: []}
    tuning.always_put_back()  # a checkpoint of one training is not where the next one starts
    try:
        with tuning.scratch() as folder:
            bench = tuning.bench(folder, None)
            bench.n_steps, bench.n_warmup, bench.budget_s = n_steps, 0, math.inf
            bench.queue = lambda settings: 0  # both train equally long
            for seed in seeds:
                for is_tuned in (False, True):
                    trial = bench.measure(levers if is_tuned else {}, seed)
                    finals[is_tuned].append(_final_loss(trial))
    finally:
        tuning.forget_runs()
    return conclude(n_steps, seeds, finals[False], finals[True])


def _final_loss(trial: Trial) -> float:
    if trial.state != "ok":
        which = "with the levers" if trial.levers else "as it is"
        raise UsageError(
            f"not proven: the training {which} on seed {trial.seed} did not end well: "
            f"{trial.reason}"
        )
    losses = [loss for loss in trial.losses if loss is not None]
    if not losses:
        raise UsageError("the losses are not known: there is nothing to prove")
    return fmean(losses[-max(1, len(losses) // 10) :])


def conclude(
    n_steps: int, seeds: tuple[int, ...], baseline: Sequence[float], tuned: Sequence[float]
) -> Proof:
    """Whether the final losses are equivalent, from their differences seed by seed."""
    differences = [t - b for b, t in zip(baseline, tuned, strict=True)]
    mean = fmean(differences)
    half = _T90[min(len(seeds) - 1, 9)] * stdev(differences) / math.sqrt(len(seeds))
    margin = max(MARGIN * abs(fmean(baseline)), stdev(baseline))
    return Proof(
        n_steps,
        seeds,
        tuple(baseline),
        tuple(tuned),
        mean,
        mean - half,
        mean + half,
        margin,
        -margin < mean - half and mean + half < margin,
    )
