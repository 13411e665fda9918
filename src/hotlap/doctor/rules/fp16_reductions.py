"""Parts of fp16 products may be added up in fp16, which torch allows unless it is told otherwise.

A long product is split, and the sums of its parts are added up. In fp16 such a sum overflows beyond
65,504 and has eleven bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "fp16_reductions"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A model in fp16 autocast on a GPU, and the flag."""
    is_fp16 = training.habits.of("settings").get("autocast") == "float16"
    if not training.is_on_gpu or not is_fp16 or not training.workload.flags.get(NAME):
        return
    yield Finding(
        NAME,
        "note",
        "parts of fp16 products may be added up in fp16",
        ("torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is on",),
        None,
        "where losses are not finite or differ from those in fp32: set it to False; bf16 does not "
        "overflow",
    )


RULE = training_rule(NAME, check)
