"""fp32 products are allowed to round as bf16 does: fast, and a risk that the script has chosen."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "medium_precision"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The precision that the script has set."""
    if training.workload.flags.get("matmul_precision") != "medium":
        return
    yield Finding(
        NAME,
        "note",
        "fp32 products may be computed in bf16",
        ("torch.set_float32_matmul_precision is 'medium'",),
        None,
        "'high' (TF32) keeps three more bits; compare the losses of both",
    )


RULE = training_rule(NAME, check)
