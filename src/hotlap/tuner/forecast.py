"""How long trials that are still to be made will take, so that the budget is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotlap.levers.common.lever import Lever
from hotlap.tuner.bench import Bench, Settings, key_of
from hotlap.tuner.order import PROMISING, Candidate

FOUND_AGAIN = 0.5
"""Of the first trial's time, with what a compiler made for it still there."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """In seconds, from the trials made so far."""

    bench: Bench
    levers: Mapping[str, Lever]

    def try_s(self, candidate: Candidate, best: Settings) -> float:
        """To try it, and to prove at the end what is kept then: none are given away.

        To try it: a trial, and the best once more. To prove it: baseline and best once more, and
        the best without each of its levers; without the last one it has just been measured. For a
        lever that promises much, what the others are worth may stay unmeasured.
        """
        lever, best_s = candidate.lever, self._again_s(best)
        first_s = max(lever.cost(candidate.value) * best_s, self._longest_s(best))
        # What leaves the model as it is leaves the compiler nothing new to do.
        trial_s = first_s if "forward" in lever.phases or not self._slow(best) else best_s
        known_s = trial_s + best_s + self.end_s(best)
        if candidate.promise >= PROMISING and lever.name not in best:
            return known_s
        new = {**best, **candidate.settings}
        return known_s + sum(first_s if self._slow(without(new, n)) else best_s for n in best)

    def leave_out_s(self, name: str, best: Settings) -> float:
        """To measure the best without one of its levers, and to prove it."""
        others = without(best, name)
        if self.bench.trials.get(key_of(others)):
            trial_s = self._again_s(others)
        elif self._slow(others):
            trial_s = self._longest_s(best)
        else:
            trial_s = self.bench.typical_trial_s()
        return trial_s + self.end_s(best)

    def end_s(self, best: Settings) -> float:
        """To measure baseline and best once more."""
        return self._again_s({}) + self._again_s(best)

    def _again_s(self, settings: Settings) -> float:
        """How long it takes to measure settings again: compilers find their first results then."""
        trials = self.bench.trials[key_of(settings)]
        is_first = self._slow(settings) and len(trials) == 1
        return trials[-1].total_s * (FOUND_AGAIN if is_first else 1.0)

    def _slow(self, settings: Settings) -> set[tuple[str, str]]:
        """The levers among these that take long to start."""
        return {(n, v) for n, v in settings.items() if self.levers[n].cost(v) > 1}

    def _longest_s(self, best: Settings) -> float:
        """How long a trial with most of the best settings may take: compilers start anew."""
        slow = self._slow(best)
        trials = [t for key, ts in self.bench.trials.items() if slow & set(key) for t in ts]
        longest = max((t.total_s for t in trials if t.state == "ok"), default=0.0)
        return max(longest, self.bench.typical_trial_s())


def without(settings: Settings, name: str) -> dict[str, str]:
    """The settings less one lever."""
    return {key: value for key, value in settings.items() if key != name}
