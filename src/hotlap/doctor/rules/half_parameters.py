"""The weights themselves are in fp16: updates smaller than their last bit are lost."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "half_parameters"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The types of the model's parameters."""
    dtypes = {dtype for one in training.workload.models for dtype in one.facts.get("dtypes", ())}
    if "float16" not in dtypes:
        return
    yield Finding(
        NAME,
        "warning",
        "the model's weights are in fp16",
        (f"types of its parameters: {', '.join(sorted(dtypes))}",),
        None,
        "weights in fp32 and the model in autocast: " + lever_cure(training, "bf16"),
    )


RULE = training_rule(NAME, check)
