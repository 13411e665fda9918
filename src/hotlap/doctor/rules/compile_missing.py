"""The model runs one operation at a time; compiled, operations that follow each other become one.

The gain is what torch.compile usually saves of forward and backward on a GPU; on a CPU it is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "compile_missing"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A model of many modules that is not compiled, with a compiler to do it."""
    decision = BY_NAME["compile"].applies(training.workload)
    n_modules = sum(
        n for one in training.workload.models for n in one.facts.get("kinds", {}).values()
    )
    if not decision.yes or n_modules < limits.least_compiled_modules:
        return
    yield Finding(
        NAME,
        "advice" if training.is_on_gpu else "note",
        f"the model of {n_modules} modules is not compiled",
        (decision.reason,),
        lever_gain(training, "compile"),
        lever_cure(training, "compile"),
    )


RULE = training_rule(NAME, check)
