"""GPUs of one node are told not to talk directly: what they exchange goes through host memory."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, is_on
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "p2p_disabled"
VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Either variable, with more than one GPU."""
    found = [name for name in VARIABLES if is_on(case.environment.get(name))]
    if found and len(case.gpus) > 1:
        paths = sorted({pair.path for pair in case.machine.system.gpu_pairs})
        yield Finding(
            NAME,
            "warning",
            "GPUs of this node may not talk to each other directly",
            (*(f"{name}=1" for name in found), f"between them: {', '.join(paths) or 'unknown'}"),
            None,
            f"unset {' '.join(found)}",
        )


RULE = Rule(NAME, check)
