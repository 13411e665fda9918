"""The script asks for results that do not vary run to run: some operations are slower by it."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "deterministic_script"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The flags, as the script leaves them when training begins."""
    flags = training.workload.flags
    found = [name for name in ("deterministic", "cudnn_deterministic") if flags.get(name)]
    torch = case.machine.software.torch
    if not found or (torch is not None and torch.is_deterministic):
        return
    yield Finding(
        NAME,
        "note",
        "the script has torch use deterministic algorithms",
        (f"flags: {', '.join(found)}",),
        None,
        "leave it out where runs need not be the same to the bit",
    )


RULE = training_rule(NAME, check)
