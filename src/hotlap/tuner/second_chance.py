"""Levers that may pay though it was not seen: how things were when they were tried, and when to
try them again.

At once, when the step waits for something else than it did then: what was in the way is gone.
At the end, once and if there is time, when a lever came near; one that promised much also when the
best is another by then, or slower itself than it was: the machine may have slowed down meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hotlap.tuner.bench import Key, Settings
from hotlap.tuner.bottleneck import Bottleneck
from hotlap.tuner.noise import Interval

NEAR = 1.03
"""A gain inside the noise that is worth another look at the end."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """One lever that was not kept."""

    best: Mapping[str, str]
    """On top of which it was tried."""
    waited_for: Bottleneck | None
    """What a step of these waited for; None where the lever had it wait for something else."""
    gain: Interval

    @property
    def is_open(self) -> bool:
        """Whether there may have been a gain, which was not seen."""
        return self.waited_for is None or self.gain.high > 1.0


@dataclass(slots=True)
class SecondChances:
    """Those that were not kept, by their settings."""

    _unseen: dict[Key, Unseen] = field(default_factory=dict)
    _had_their_last: set[Key] = field(default_factory=set)

    def remember(self, key: Key, unseen: Unseen) -> None:
        """That it was not kept."""
        self._unseen[key] = unseen

    def take(self, key: Key) -> None:
        """It gets its chance now; it has another only if it is remembered again."""
        self._unseen.pop(key, None)

    def take_last(self, key: Key) -> None:
        """As `take`, and it gets no other at the end."""
        self._had_their_last.add(key)
        self.take(key)

    def has(self, key: Key) -> bool:
        """Whether it was tried and its worth is still open."""
        return key in self._unseen and self._unseen[key].is_open

    def has_any(self, keys: Iterable[Key], best: Settings) -> bool:
        """Whether one of these was tried on top of this best, and could be once more."""
        left = self._unseen.keys() & set(keys) - self._had_their_last
        return any(self._unseen[key].best == best for key in left)

    def is_due(self, key: Key, best: Settings, waits_for: Bottleneck) -> bool:
        """Whether what may have hidden its gain is not there any more."""
        if not self.has(key):
            return False
        one = self._unseen[key]
        return one.best != best and one.waited_for != waits_for

    def is_due_at_the_end(self, key: Key, best: Settings, now: Interval | None) -> bool:
        """Whether it came near, or the best is another, or it would come near by now.

        `now` is its gain over the best as that was measured last; None where it was not tried on
        top of this one.
        """
        one = self._unseen.get(key)
        if one is None or key in self._had_their_last:
            return False
        is_other_best = one.gain.high > 1.0 and one.best != best
        return is_other_best or _is_near(one.gain) or (now is not None and _is_near(now))

    def came_near(self, key: Key, best: Settings) -> bool:
        """Whether there was a gain over this best, which noise has hidden."""
        one = self._unseen.get(key)
        if one is None or key in self._had_their_last:
            return False
        return one.best == best and _is_near(one.gain)


def _is_near(gain: Interval) -> bool:
    return gain.high > 1.0 and gain.value > NEAR
