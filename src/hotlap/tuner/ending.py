"""The end of a climb: what each kept lever is worth, and the ratio that is claimed."""

from __future__ import annotations

from hotlap.tuner.bench import RECENT
from hotlap.tuner.forecast import without
from hotlap.tuner.rungs import inverse
from hotlap.tuner.standing import Standing

MOST_LOOKS = 4
"""Times that baseline and best are measured, in turns, before noise has hidden the result."""


def leave_one_out(climb: Standing) -> bool:
    """Take each kept lever away once; what is not missed then is a passenger and goes.

    False where the best failed on the way, and the climb went back to another one.
    """
    has_time = len(climb.best) > 1 and _has_time_without(climb, next(iter(climb.best)))
    if has_time and not climb.best_holds():
        return False
    for name in list(climb.best):
        if len(climb.best) == 1:
            break  # without it is the baseline, which is measured again in any case
        if _was_kept_last(climb, name):
            continue
        if not _has_time_without(climb, name):
            climb.is_complete = False
            climb.notes.append("contributions were not all measured: the budget is too short")
            break
        if not _left_out(climb, name):
            return False
    return True


def _was_kept_last(climb: Standing, name: str) -> bool:
    """Whether nothing changed since it was kept: what it is worth was measured then."""
    if climb.last_gain is None or climb.last_gain[0] != without(climb.best, name):
        return False
    climb.contribute(name, climb.last_gain[1], "")
    return True


def _has_time_without(climb: Standing, name: str) -> bool:
    return climb.bench.time_left() > climb.forecast.leave_out_s(name, climb.best)


def _left_out(climb: Standing, name: str) -> bool:
    """Take one lever away; False where the best failed on the way."""
    others = without(climb.best, name)
    trial = climb.bench.measure(others)
    if trial.state != "ok":
        climb.contribute(name, None, f"without it: {trial.state}, {trial.reason}")
        return True
    gain = inverse(climb.gain_of(others))
    if gain.low <= 1.0 < gain.high and _has_time_without(climb, name):
        if not climb.best_holds():
            return False
        climb.bench.measure(others)
        gain = inverse(climb.gain_of(others))
    if gain.low > 1.0:
        climb.contribute(name, gain, "")
        return True
    state, reason, _ = climb.judged(others, trial)
    if state != "ok":
        climb.contribute(name, None, f"without it: {state}, {reason}")
        return True
    climb.drop(name, f"a passenger: without it {climb.objective.told(inverse(gain))}")
    climb.best = others
    climb.on_kept(climb.best)
    return True


def conclude(climb: Standing) -> bool:
    """Baseline and best again, side by side: the ratio that is claimed.

    False where the best failed on the way, and the climb went back to another one.
    """
    if not climb.best:
        return True
    result, n_looks = climb.ratio_so_far(), 0
    while n_looks < RECENT or (n_looks < MOST_LOOKS and result.low <= 1.0 < result.high):
        if climb.bench.time_left() <= climb.forecast.end_s(climb.best):
            break
        climb.bench.measure({})
        if not climb.best_holds():
            return False
        n_looks += 1
        # After two of them without the one before the climb: the machine may be another by now.
        result = climb.ratio_so_far(max(n_looks, RECENT))
    if n_looks == 0:
        climb.notes.append(
            "there was no time to measure baseline and best once more, side by side: the ratio is "
            "of what was measured before"
        )
    if result.low > 1.0:
        climb.result = result
        if len(climb.best) == 1:
            climb.contribute(next(iter(climb.best)), result, "")
        return True
    told = climb.objective.told(result)
    for name in list(climb.best):
        climb.drop(name, f"all together are not seen to be better: {told}")
    climb.best = {}
    climb.on_kept(climb.best)
    return True
