"""Gradients are exchanged after every backward of an accumulation; only the last needs it."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "accumulation_sync"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Several backwards an update under DDP, and no `no_sync`."""
    ddp, n_updates = training.habits.of("ddp"), training.habits.of("updates").get("n_updates", 0)
    n_backwards = training.habits.of("backward").get("n", 0)
    if not ddp or ddp.get("n_no_sync") or training.workload.world_size < 2 or not n_updates:
        return
    per_update = round(n_backwards / n_updates)
    if per_update < 2:
        return
    where = place(training.habits.site("backward"))
    yield Finding(
        NAME,
        "warning",
        f"{per_update} backwards an update, each with an exchange of all gradients",
        (f"backward at {where}; no_sync() is not used",),
        None,
        f"{where}: all but the last inside `with model.no_sync():`",
    )


RULE = training_rule(NAME, check)
