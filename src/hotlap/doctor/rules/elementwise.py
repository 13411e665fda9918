"""Operations that only move memory take a good part of the step: fused, they move it once.

Additions, activations, norms, dropout and the like do less than one FLOP a byte. Several of them in
a row, made one kernel, read and write once. The gain is that of a step in which they take half; on
a CPU, whose caches hold what is between, it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent, without
from hotlap.doctor.kernels import Kernels, is_update, told
from hotlap.doctor.model import is_channels_first
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "elementwise"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """Their share, without the optimizer's; a model that is compiled has them fused."""
    # Norms between convolutions are slow in torch's default order, which has a rule of its own.
    kinds = ("elementwise",) if is_channels_first(training, limits) else ("elementwise", "norm")
    own = [op for op in kernels.top(*kinds) if not is_update(op)]
    # An update is made of such operations too, in one kernel or in many.
    all_s = kernels.seconds(*kinds)
    share = kernels.share(all_s) - training.share("optimizer")
    is_compiled = any(one.facts.get("is_compiled") for one in training.workload.models)
    if is_compiled or share < limits.least_elementwise_share or len(own) < 2:
        return
    dominant = kernels.dominant(limits.least_dominant_share)
    if dominant is not None and dominant.kind == "elementwise":
        return  # one operation, which has a rule of its own: there is nothing to fuse it with
    yield Finding(
        NAME,
        "advice" if kernels.is_on_device else "note",
        f"operations that only move memory take {percent(share)} of the step",
        tuple(told(op) for op in own[:3]),
        without(limits.saved_by_fusing * share) if kernels.is_on_device else None,
        lever_cure(training, "compile"),
    )


RULE = profile_rule(NAME, check)
