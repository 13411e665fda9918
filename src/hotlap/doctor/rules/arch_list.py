"""The build has no machine code for a GPU that is there.

Without any code the first kernel fails. With PTX the driver compiles every kernel at the first
start, and the build was not tuned for the chip.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "arch_list"
CURE = "install a build of torch whose torch.cuda.get_arch_list() has the GPU"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """One finding for all GPUs that have the same fault."""
    torch = case.machine.software.torch
    if torch is None or not torch.cuda:  # another rule's
        return
    for state, severity in (("does not fit", "error"), ("works", "advice")):
        fits = [fit for fit in case.machine.stack.gpus if fit.state == state]
        if fits:
            yield Finding(
                NAME,
                "error" if severity == "error" else "advice",
                "torch was not built for "
                + ("this GPU" if len(fits) == 1 else f"{len(fits)} of the GPUs"),
                tuple(f"GPU {fit.gpu}: {fit.how}" for fit in fits),
                None,
                CURE,
            )


RULE = Rule(NAME, check)
