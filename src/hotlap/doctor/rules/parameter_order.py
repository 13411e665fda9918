"""DDP with `find_unused_parameters` exchanges gradients in the order in which layers were made.

Elsewhere it sees in the first step which gradients are ready first, and sorts its buckets by that.
With that argument it does not: layers that are made in another order than they are called in have
buckets wait for gradients that come late, and nothing is exchanged meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "parameter_order"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The order in which layers were made, and that in which their gradients were ready."""
    ddp = training.habits.of("ddp")
    made, ready = ddp.get("made") or [], ddp.get("ready") or []
    if not ddp.get("find_unused_parameters") or ddp.get("static_graph") or not ready:
        return
    places = [made.index(owner) for owner in reversed(ready)]
    n_moved = len(places) - _longest_rise(places)
    if n_moved < limits.least_moved * len(places):
        return
    where = place(training.habits.site("ddp"))
    yield Finding(
        NAME,
        "advice",
        f"{n_moved} of {len(places)} layers are made in another order than they are called in",
        (f"'{made[0]}' was made first, '{ready[0]}' had its gradient first; DDP at {where}",),
        None,
        "make the layers in the order in which forward calls them; or, where the same parameters "
        f"are unused in every step, {where}: static_graph=True",
    )


def _longest_rise(values: Sequence[int]) -> int:
    """How many of them can stay where they are for the rest to be put in order."""
    ends: list[int] = []
    for value in values:
        at = bisect_left(ends, value)
        ends[at : at + 1] = [value]
    return len(ends)


RULE = training_rule(NAME, check)
