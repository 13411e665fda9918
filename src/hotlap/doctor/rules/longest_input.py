"""Batches of many lengths on a GPU: each longer one has the allocator take and cut memory anew."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import times

NAME = "longest_input"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Inputs of many lengths, put together by a function of the script's own."""
    lengths = {shape[1:] for shape, _ in training.habits.shapes}
    if len(lengths) <= limits.most_lengths:
        return
    if not BY_NAME["longest_input"].applies(training.workload).yes:
        return
    yield Finding(
        NAME,
        "note",
        f"inputs have {len(lengths)} lengths so far",
        tuple(f"{list(shape)}: {times(n)}" for shape, n in training.habits.shapes[:3]),
        None,
        lever_cure(training, "longest_input"),
    )


RULE = training_rule(NAME, check)
