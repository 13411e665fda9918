"""Which rank the others wait for, said from what ranks say of themselves; no clock, no network."""

from __future__ import annotations

from dataclasses import dataclass

BEAT_S = 1.0
"""From one sign of a rank to the next."""
AWAY_S = 5.0
"""Who has not looked for so long was stopped itself, and knows nothing about the others."""
SLOWER = 5
"""Times the longest stay in a section so far: who stays longer is not only slow."""
FAREWELL_S = 5.0
"""A rank that raised: the others may have done so too, and then have something to say."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rank says of itself."""

    n_signs: int
    n_sections: int
    """Of the loop, that it has entered."""
    section: str
    step: int
    is_first: bool
    """Whether these are its first steps, in which even a thread may be held up."""
    is_long: bool
    """Whether this section may take as long as collectives wait."""
    state: str
    """'running', 'left', or the error it ended with."""
    pid: int
    process: str
    """What no other process has, of any node or time."""
    line: str = ""
    """Of the source that it is at."""
    is_waiting: bool = False
    """Whether that is where ranks wait for one another."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job is over, because of one rank."""

    rank: int
    reason: str
    pid: int
    process: str


@dataclass(slots=True)
class _Seen:
    """When a rank was last seen to do something."""

    sign: Sign
    alive_s: float
    moved_s: float


class Judge:
    """Looks at all signs again and again, and remembers when each changed."""

    def __init__(self, stall_s: float, timeout_s: float) -> None:
        self._stall_s, self._timeout_s = stall_s, timeout_s
        self._seen: dict[int, _Seen] = {}
        self._looked_s = 0.0
        self._longest_s = 0.0
        """That a rank was seen in one section, long ones aside."""

    def limit_s(self, is_patient: bool) -> float:
        """How long a rank may stand still."""
        return max(self._stall_s, self._timeout_s) if is_patient else self._stall_s

    def look(self, signs: dict[int, Sign], now_s: float) -> Verdict | None:
        """The rank that ends the job, if there is one."""
        if now_s - self._looked_s > AWAY_S:
            self._seen = {}
        self._looked_s = now_s
        for rank, sign in signs.items():
            self._see(rank, sign, now_s)
        running = {rank: one for rank, one in self._seen.items() if one.sign.state == "running"}
        found = self._raised(now_s) or self._silent(running, now_s)
        return found or self._behind(running, now_s) or self._stuck(running, now_s)

    def _see(self, rank: int, sign: Sign, now_s: float) -> None:
        last = self._seen.get(rank)
        if last is None or last.sign.state != sign.state:
            self._seen[rank] = _Seen(sign, now_s, now_s)
            return
        if sign.n_signs != last.sign.n_signs:
            last.alive_s = now_s
        if sign.n_sections != last.sign.n_sections:
            if not last.sign.is_long:
                self._longest_s = max(self._longest_s, now_s - last.moved_s)
            last.moved_s = now_s
        last.sign = sign

    def _raised(self, now_s: float) -> Verdict | None:
        for rank, one in self._seen.items():
            is_error = one.sign.state not in ("running", "left")
            if is_error and now_s - one.moved_s > FAREWELL_S:
                return _verdict(rank, one, f"ended with {one.sign.state}")
        return None

    def _silent(self, running: dict[int, _Seen], now_s: float) -> Verdict | None:
        for rank, one in running.items():
            limit_s = self.limit_s(one.sign.is_first)
            if now_s - one.alive_s > limit_s:
                return _verdict(rank, one, f"has given no sign for {limit_s:g} s")
        return None

    def _behind(self, running: dict[int, _Seen], now_s: float) -> Verdict | None:
        furthest = max((one.sign.n_sections for one in running.values()), default=0)
        for rank, one in sorted(running.items(), key=lambda each: each[1].sign.n_sections):
            limit_s = self.limit_s(one.sign.is_first or one.sign.is_long)
            if one.sign.n_sections < furthest and now_s - one.moved_s > limit_s:
                return _verdict(rank, one, f"has stood still for {limit_s:g} s")
        return None

    def _stuck(self, running: dict[int, _Seen], now_s: float) -> Verdict | None:
        """All in one section, for far longer than it ever took: one of them holds up the others."""
        if len({one.sign.n_sections for one in running.values()}) != 1 or len(running) < 2:
            return None
        is_patient = any(one.sign.is_first or one.sign.is_long for one in running.values())
        limit_s = max(self.limit_s(is_patient), SLOWER * self._longest_s)
        if any(now_s - one.moved_s <= limit_s for one in running.values()):
            return None
        if any(now_s - one.alive_s > 3 * BEAT_S for one in running.values()):
            return None  # it may be about to be called silent
        at_work = [rank for rank, one in sorted(running.items()) if not one.sign.is_waiting]
        if 0 < len(at_work) < len(running):
            return _verdict(at_work[0], running[at_work[0]], f"has stood still for {limit_s:g} s")
        first = min(running)
        sign = running[first].sign
        lines = ", ".join(f"rank {r} at {one.sign.line}" for r, one in sorted(running.items()))
        where = f"{sign.section}, step {sign.step}: {lines}"
        reason = f"no rank has moved for {limit_s:g} s ({where}), so the training ends here"
        return Verdict(first, reason, sign.pid, sign.process)


def _verdict(rank: int, one: _Seen, what: str) -> Verdict:
    sign = one.sign
    where = f"{sign.section}, step {sign.step}" + (f", at {sign.line}" if sign.line else "")
    reason = f"rank {rank} {what} ({where}); the others wait for it, so the training ends here"
    return Verdict(rank, reason, sign.pid, sign.process)
