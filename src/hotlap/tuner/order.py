"""Which levers to try, and in what order.

The order comes from where the step's time goes: a step that waits for data tries the loader first.
It is asked for again whenever something was kept, with the phases that the step has then. This is
the one function that findings of the doctor can replace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hotlap.levers.common.lever import Lever
from hotlap.levers.common.workload import Workload

MIN_SHARE = 0.02
"""Of the step: what a lever can shorten must take this much, or it can gain next to nothing."""
MEMORY_SAVED, BY_THE_WAY = 0.3, 0.1
"""Of the peak, by levers that are there to save it; and by others, of what they save of the step.
"""
PROMISING = 0.1
"""A lever that may save this share of the step is not given up because the machine is noisy."""
NEXT_VALUE = 0.5
"""What a lever's next value promises, of what the one before it does."""
N_AHEAD = 3
"""Values that go on: how many behind the last that gained are tried, in case noise has hidden one.
"""
ANOTHER_VALUE = 0.25
"""The same for all values where one is kept, whose place it would take and whose gain is there."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lever to try with a value; or why it is not tried."""

    lever: Lever
    value: str
    not_tried: str = ""
    promise: float = 0.0
    """The share that it may save: of the step, or of the memory where that is to be bettered."""
    together: tuple[tuple[str, str], ...] = ()
    """Levers and values that are tried with it."""

    @property
    def settings(self) -> dict[str, str]:
        """What is tried, on top of what was kept."""
        return {**dict(self.together), self.lever.name: self.value}


def order_levers(
    levers: Sequence[Lever],
    workload: Workload,
    kept: Mapping[str, str],
    allowed: Iterable[str] = (),
    objective: str = "time",
) -> list[Candidate]:
    """Candidates first, by the share that they promise to save; then those not tried.

    Sorting keeps the order of LEVERS among equals; what is promised is rounded, so that noise in
    the phases does not shuffle levers that concern about as much of the step.
    """
    firsts: dict[str, Candidate] = {}
    others: list[Candidate] = []
    not_tried = []
    for lever in levers:
        reason = _why_not(lever, workload, kept, set(allowed), objective)
        if reason:
            not_tried.append(Candidate(lever, "", reason))
            continue
        promise = _promise(lever, workload, objective)
        if lever.name in kept and not lever.values_go_on:
            promise *= ANOTHER_VALUE
        first, *further = _values(lever, workload, kept)
        firsts[lever.name] = Candidate(lever, first, promise=promise)
        for i, value in enumerate(further, start=1):
            others.append(Candidate(lever, value, promise=promise * NEXT_VALUE**i))
    pairs = _together(firsts, workload, kept) if objective != "memory" else ()
    candidates = [*pairs, *firsts.values(), *others]
    place = {lever.name: i for i, lever in enumerate(levers)}
    candidates.sort(key=lambda one: (-_rank(one), place[one.lever.name]))
    return candidates + not_tried


def _rank(candidate: Candidate) -> float:
    return round(candidate.promise / math.sqrt(candidate.lever.cost(candidate.value)), 2)


def _together(
    firsts: Mapping[str, Candidate], workload: Workload, kept: Mapping[str, str]
) -> Iterator[Candidate]:
    """Levers with those that they gain most with, where these could be tried alone as well."""
    for one in firsts.values():
        names = [name for name in one.lever.best_with(workload) if name not in kept]
        partners = [firsts[name] for name in names if name in firsts]
        if partners:
            left = math.prod(1 - partner.promise for partner in (one, *partners))
            pairs = tuple((partner.lever.name, partner.value) for partner in partners)
            yield replace(one, promise=1 - left, together=pairs)


def _promise(lever: Lever, workload: Workload, objective: str) -> float:
    if objective == "memory" and lever.saves_memory:
        return MEMORY_SAVED
    of_the_step = workload.share(*lever.phases) * lever.saves(workload)
    return BY_THE_WAY * of_the_step if objective == "memory" else of_the_step


def _why_not(
    lever: Lever, workload: Workload, kept: Mapping[str, str], allowed: set[str], objective: str
) -> str:
    """Why a lever is not worth a trial now; empty where it is."""
    decision = lever.applies(workload)
    if not decision.yes:
        return decision.reason
    if lever.changes == "maths" and lever.name not in allowed:
        return f"it changes the maths; `--allow {lever.name}` tries it"
    if not lever.phases and not (lever.saves_memory and objective == "memory"):
        return "it saves memory and no time; `--objective memory` tries it"
    share = workload.share(*lever.phases)
    if objective == "time" and lever.phases and share < MIN_SHARE and lever.name not in allowed:
        return f"what it can shorten is {share:.0%} of the step"
    missing = [name for name in lever.only_with(workload) if name not in kept]
    if missing:
        return f"of use together with {', '.join(missing)} only"
    better = [name for name in lever.needless_with if name in kept]
    if better:
        return f"{better[0]} leaves nothing for it to do"
    return "" if _values(lever, workload, kept) else "no value of it is worth a trial here"


def _values(lever: Lever, workload: Workload, kept: Mapping[str, str]) -> tuple[str, ...]:
    """All of them; of those that go on and on, some behind the one that is kept."""
    values = lever.values(workload)
    if not lever.values_go_on:
        return values
    n_behind = values.index(kept[lever.name]) + 1 if kept.get(lever.name) in values else 0
    return values[n_behind : n_behind + N_AHEAD]
