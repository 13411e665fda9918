"""Every backward keeps its graph although none goes through it again: memory for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "retain_graph"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Backwards that keep their graph, one for each update."""
    backward = training.habits.of("backward")
    n, n_updates = backward.get("n_retaining", 0), training.habits.of("updates").get("n_updates")
    if n < 2 or n < backward["n"] or not n_updates or backward["n"] > n_updates + 1:
        return
    where = place(training.habits.site("backward"))
    yield Finding(
        NAME,
        "advice",
        "backward keeps its graph, and nothing goes through it again",
        (f"{n} backwards with retain_graph at {where}, one an update",),
        None,
        f"{where}: backward()",
    )


RULE = training_rule(NAME, check)
