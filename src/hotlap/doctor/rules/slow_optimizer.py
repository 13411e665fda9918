"""The update of the weights takes a good part of the step, in many small operations.

The gain is what one fused kernel usually saves of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain, percent, places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.workload import Seen
from hotlap.levers.fused_optimizer import KINDS
from hotlap.records.finding import Finding

NAME = "slow_optimizer"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """An optimizer that could be fused, and its share of the step."""
    decision = BY_NAME["fused_optimizer"].applies(training.workload)
    share = training.share("optimizer")
    chosen = [o for o in training.workload.optimizers if _is_chosen(o)]
    if not (decision.yes or chosen) or share < limits.least_optimizer_share:
        return
    kinds = sorted({str(one.facts.get("kind")) for one in training.workload.optimizers})
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is the update of {', '.join(kinds)}",
        (decision.reason if decision.yes else f"the script asks for {_asked(chosen[0])}",),
        lever_gain(training, "fused_optimizer"),
        lever_cure(training, "fused_optimizer")
        if decision.yes
        else f"{places(o.site for o in chosen)}: fused=True in place of {_asked(chosen[0])}",
    )


def _is_chosen(optimizer: Seen) -> bool:
    """Whether the script itself asks for another form than the fused one, which there is."""
    facts = optimizer.facts
    has_fused = facts.get("kind") in KINDS and not facts.get("differentiable")
    return has_fused and not facts.get("fused") and facts.get("foreach") is not None


def _asked(optimizer: Seen) -> str:
    return f"foreach={optimizer.facts['foreach']}"


RULE = training_rule(NAME, check)
