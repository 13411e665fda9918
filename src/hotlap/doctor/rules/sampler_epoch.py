"""The sampler of the ranks is never told the epoch: every epoch has the same order."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "sampler_epoch"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Epochs begun and epochs told."""
    sampler = training.habits.of("sampler")
    if sampler.get("n_epochs", 0) < 2 or sampler.get("n_set"):
        return
    where = place(training.habits.site("sampler"))
    yield Finding(
        NAME,
        "warning",
        "each epoch goes through the data in the same order",
        (f"DistributedSampler at {where} began {sampler['n_epochs']} epochs without set_epoch",),
        None,
        f"sampler.set_epoch(epoch) at the begin of each epoch, for the sampler of {where}",
    )


RULE = training_rule(NAME, check)
