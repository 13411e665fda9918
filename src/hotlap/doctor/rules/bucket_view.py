"""DDP copies every gradient into its buckets; they could be views of them.

The gain is what that usually saves of backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_gain, place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "bucket_view"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The argument, on several ranks."""
    ddp = training.habits.of("ddp")
    if not ddp or ddp.get("gradient_as_bucket_view") or training.workload.world_size < 2:
        return
    where = place(training.habits.site("ddp"))
    yield Finding(
        NAME,
        "note",
        "gradients are copied into DDP's buckets",
        (f"gradient_as_bucket_view is not set at {where}",),
        lever_gain(training, "ddp"),
        f"{where}: gradient_as_bucket_view=True, or `hotlap run --levers ddp=bucket_view`",
    )


RULE = training_rule(NAME, check)
