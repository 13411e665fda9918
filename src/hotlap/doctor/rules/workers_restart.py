"""Loader workers end with every epoch and are started anew.

The gain is that of a step without the starts that were measured, and without the waits for the
first batches of new workers: the longest waits for data, one for each start.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from hotlap.doctor.cure import lever_cure, n_of, percent, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "workers_restart"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `iter(loader)` of loaders whose workers do not stay."""
    calls = training.calls("iter(loader)")
    share = training.share_of(calls)
    if share < limits.least_call_share:
        return
    n_starts = sum(call.n for call in calls)
    yield Finding(
        NAME,
        "advice",
        f"starting loader workers again for each epoch takes {percent(share)} of the training",
        (f"{n_of(n_starts, 'start')} at {places([call.site for call in calls])}",),
        without(share + _late_share(training, n_starts)),
        lever_cure(training, "persistent_workers"),
    )


def _late_share(training: Training, n_starts: int) -> float:
    """Of the steps of the first rank: what so many of its waits are longer than usual."""
    if not training.ranks:
        return 0.0
    table, skip = training.ranks[0].steps, training.run.steps.warmup
    waits = sorted((ns for ns in table.data_ns[skip:] if ns is not None), reverse=True)
    if not waits:
        return 0.0
    late = sum(ns - median(waits) for ns in waits[:n_starts])
    return float(late / sum(table.total_ns[skip:]))


RULE = training_rule(NAME, check)
