"""Torch has CUDA and the driver shows GPUs, yet torch cannot use them.

Usual causes: a driver that is too old, a container started without its GPUs, a broken installation.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "cuda_unavailable"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A GPU that may be used, a build that could, and no device in torch."""
    torch = case.machine.software.torch
    if torch is None or not (torch.cuda or torch.hip) or torch.is_cuda_available:
        return
    if not case.gpus or case.machine.stack.driver == "does not fit":
        return
    yield Finding(
        NAME,
        "error",
        "torch was built for GPUs and cannot use those that are there",
        (torch.why_no_cuda, f"driver {case.machine.software.driver}"),
        None,
        "see the driver's own message; in a container, start it with its GPUs (--gpus, --nv)",
    )


RULE = Rule(NAME, check)
