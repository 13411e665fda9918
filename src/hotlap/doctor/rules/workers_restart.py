"""Loader workers end with every epoch and are started anew.

The gain is that of a step without the waits for the first batches of new workers, which include
their start and the end of those before: the longest waits for data in the measured steps, one for
each start, as far as they are longer than the usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from hotlap.doctor.cure import lever_cure, percent, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "workers_restart"
MADE_ONCE = "make the loader once, before the epochs, with persistent_workers=True"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Time in `iter(loader)` of loaders whose workers do not stay, or that are made anew."""
    again = training.calls("iter(loader)")
    # One that is new may be the first of its kind; persistent workers would not stay with them.
    anew = tuple(call for call in training.calls("iter(new loader)") if call.n > 1)
    found = (
        (again, "starting loader workers again", lever_cure(training, "persistent_workers")),
        (anew, "making a loader anew and starting its workers", MADE_ONCE),
    )
    for calls, what, cure in found:
        n_starts = sum(call.n for call in calls)
        share = _late_share(training, n_starts)
        # Starts before the measured steps take nothing of these; long waits may have other reasons.
        if min(share, training.share_of(calls)) < limits.least_call_share:
            continue
        yield Finding(
            NAME,
            "advice",
            f"{what} for each epoch takes {percent(share)} of the training",
            (f"{n_of(n_starts, 'start')} at {places([call.site for call in calls])}",),
            without(share),
            cure,
        )


def _late_share(training: Training, n_starts: int) -> float:
    """Of the steps of the first rank: what the waits behind starts are longer than usual."""
    if not training.ranks:
        return 0.0
    table, skip = training.ranks[0].steps, training.run.steps.warmup
    measured = table.total_ns[skip:]
    waits = sorted((ns for ns in table.data_ns[skip:] if ns is not None), reverse=True)
    if not waits:
        return 0.0
    n_late = round(n_starts * len(measured) / len(table.total_ns))
    late = sum(ns - median(waits) for ns in waits[:n_late])
    return float(late / sum(measured))


RULE = training_rule(NAME, check)
