"""The update of the weights takes a good part of the step, in many small operations.

The gain is what one fused kernel usually saves of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain, percent
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "slow_optimizer"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """An optimizer that could be fused, and its share of the step."""
    decision = BY_NAME["fused_optimizer"].applies(training.workload)
    share = training.share("optimizer")
    if not decision.yes or share < limits.least_optimizer_share:
        return
    kinds = sorted({str(one.facts.get("kind")) for one in training.workload.optimizers})
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is the update of {', '.join(kinds)}",
        (decision.reason,),
        lever_gain(training, "fused_optimizer"),
        lever_cure(training, "fused_optimizer"),
    )


RULE = training_rule(NAME, check)
