"""There are GPUs, and torch was built for the CPU alone: they stay idle.

The gain is that of a step of matrix products, from the CPU's measured rate to the GPU's stated one.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.machine.chips import find_chip
from hotlap.records.finding import Finding

NAME = "cpu_only_torch"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A build without CUDA and ROCm beside a GPU."""
    torch = case.machine.software.torch
    if torch is None or torch.cuda or torch.hip or not case.gpus:
        return
    yield Finding(
        NAME,
        "error",
        f"torch {torch.version} was built without CUDA: the GPUs are not used",
        (f"{len(case.gpus)} x {case.gpus[0].name} can be seen",),
        _gain(case),
        "install a build of torch with CUDA (or ROCm) for this driver",
    )


def _gain(case: Case) -> float | None:
    chip = find_chip(case.gpus[0].name, case.gpus[0].memory_bytes)
    ceilings = case.machine.ceilings
    on_cpu = ceilings.rate("matmul fp32", "cpu") if ceilings else None
    return chip.fp32_flops_per_s / on_cpu if chip and on_cpu else None


RULE = Rule(NAME, check)
