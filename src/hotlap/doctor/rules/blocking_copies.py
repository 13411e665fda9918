"""Batches are pinned, and the step waits for their copies all the same.

The gain is that of a step whose copies go on beside its work.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent, places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import keyword
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "blocking_copies"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Copies without `non_blocking` in the loop, and time that goes into copies."""
    loaders, share = training.workload.loaders, training.share("transfer")
    is_pinned = bool(loaders) and all(one.facts.get("pin_memory") for one in loaders)
    if not training.is_on_gpu or not is_pinned or share < limits.least_transfer_share:
        return
    sites = [
        file.site(node)
        for file, node in training.script.copies()
        if keyword(node, "non_blocking") is None
    ]
    if not sites:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step waits for copies of pinned batches",
        (f"copies that wait: {places(sites)}",),
        without(share),
        f"{places(sites)}: non_blocking=True; or {lever_cure(training, 'device_prefetch')}",
    )


RULE = training_rule(NAME, check)
