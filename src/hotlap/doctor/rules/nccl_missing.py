"""Several GPUs, and a torch without NCCL: ranks would talk through the host."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "nccl_missing"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """More than one GPU in use and no version of NCCL."""
    torch = case.machine.software.torch
    if torch is None or not torch.cuda or not torch.is_cuda_available or torch.nccl:
        return
    if len(case.gpus) > 1 or case.n_nodes > 1:
        yield Finding(
            NAME,
            "warning",
            "torch has no NCCL: GPUs exchange gradients through the host",
            (f"{n_of(len(case.gpus), 'GPU')} on {n_of(case.n_nodes, 'node')}",),
            None,
            "install a build of torch with NCCL",
        )


RULE = Rule(NAME, check)
