"""The node has GPUs, and CUDA_VISIBLE_DEVICES hides all of them."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "no_visible_gpu"
VARIABLE = "CUDA_VISIBLE_DEVICES"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """GPUs, none of them visible."""
    gpus = case.machine.system.gpus
    if gpus and not case.gpus:
        yield Finding(
            NAME,
            "warning",
            f"of {n_of(len(gpus), 'GPU')} none is visible to a training",
            (f"{VARIABLE}={case.environment.get(VARIABLE, '')}",),
            None,
            f"ask the scheduler for GPUs, or unset {VARIABLE}",
        )


RULE = Rule(NAME, check)
