"""Much of a batch of sequences is padding: the model computes what nobody looks at.

The gain is that of forward and backward without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, percent, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "padding"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The part of the first batches that is one value repeated to the end of its row."""
    padding = training.habits.facts.get("padding")
    if not padding or padding < limits.least_padding:
        return
    yield Finding(
        NAME,
        "advice",
        f"{percent(padding)} of the batches is padding",
        ("rows of the first batches end in one repeated value",),
        without(padding * training.share("forward", "backward")),
        lever_cure(training, "bucket_by_length")
        if BY_NAME["bucket_by_length"].applies(training.workload).yes
        else "cut each batch to its longest row, in a collate_fn or before the model is called",
    )


RULE = training_rule(NAME, check)
