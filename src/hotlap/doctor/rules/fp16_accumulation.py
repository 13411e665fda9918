"""fp16 products are summed in fp16 as well: faster on some GPUs, and sums overflow or lose bits."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "fp16_accumulation"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The flag that the script has set; torch's default is off."""
    if not training.workload.flags.get("fp16_accumulation"):
        return
    yield Finding(
        NAME,
        "warning",
        "sums of fp16 products are kept in fp16",
        ("torch.backends.cuda.matmul.allow_fp16_accumulation is on",),
        None,
        "leave it off, or compare the losses of both over many steps (`hotlap compare`)",
    )


RULE = training_rule(NAME, check)
