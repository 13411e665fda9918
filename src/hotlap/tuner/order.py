"""Which levers to try, and in what order.

The order comes from where the step's time goes: a step that waits for data tries the loader first.
This is the one function that findings of the doctor can replace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hotlap.levers.common.lever import Lever
from hotlap.levers.common.workload import Workload

MIN_SHARE = 0.02
"""Of the step: what a lever can shorten must take this much, or it can gain next to nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lever to try, with its values; or why it is not tried."""

    lever: Lever
    values: tuple[str, ...]
    not_tried: str = ""
    only_with: tuple[str, ...] = ()
    """Levers of which one has to be in the best settings already."""


def order_levers(
    levers: Sequence[Lever], workload: Workload, allowed: Iterable[str], objective: str
) -> list[Candidate]:
    """Candidates first, by the share of the step they can shorten; then those not tried."""
    candidates = [_candidate(lever, workload, set(allowed), objective) for lever in levers]
    tried = [one for one in candidates if not one.not_tried]
    # Sorting keeps the order of LEVERS among equals; what is promised is rounded, so that noise in
    # the phases does not shuffle levers that concern about as much of the step.
    tried.sort(key=lambda one: -round(_promise(one.lever, workload), 1))
    return tried + [one for one in candidates if one.not_tried]


def _promise(lever: Lever, workload: Workload) -> float:
    """A lever made for one phase does more for it than one that helps everywhere a little."""
    return workload.share(*lever.phases) / math.sqrt(max(len(lever.phases), 1))


def _candidate(lever: Lever, workload: Workload, allowed: set[str], objective: str) -> Candidate:
    decision = lever.applies(workload)
    if not decision.yes:
        return Candidate(lever, (), decision.reason)
    if lever.changes == "maths" and lever.name not in allowed:
        return Candidate(lever, (), f"it changes the maths; `--allow {lever.name}` tries it")
    if not lever.phases and not (lever.saves_memory and objective == "memory"):
        return Candidate(lever, (), "it saves memory and no time; `--objective memory` tries it")
    share = workload.share(*lever.phases)
    if objective == "time" and lever.phases and share < MIN_SHARE and lever.name not in allowed:
        return Candidate(lever, (), f"what it can shorten is {share:.0%} of the step")
    values = lever.values(workload)
    reason = "" if values else "no value of it is worth a trial here"
    return Candidate(lever, values, reason, lever.only_with(workload))
