"""The GPU waits for kernels to be launched: the host, one core of it, is slower than the device.

The gain is that of a step whose forward and backward have no gaps: CUDA graphs come near to that,
and the optimizer and the rest of the loop are launched as before.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, percent, without
from hotlap.doctor.kernels import Kernels
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "launch_gaps"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """Idle time that is neither for data nor for a synchronisation nor for other ranks."""
    share = kernels.share(kernels.idle().get("launch", 0.0))
    if share < limits.least_idle_share:
        return
    n_kernels = sum(one.calls for one in kernels.rank.classes)
    yield Finding(
        NAME,
        "advice",
        f"the GPU waits for launches in {percent(share)} of the step",
        (f"{n_kernels:.0f} kernels a step of {kernels.step_s * 1e3:.3g} ms",),
        without(share * training.share("forward", "backward")),
        _cure(training),
    )


def _cure(training: Training) -> str:
    """Of a model that talks to other GPUs on its way, the parts in between can be replayed."""
    if any(one.facts.get("is_ddp") for one in training.workload.models):
        return lever_cure(training, "compile", "reduce-overhead")
    return lever_cure(training, "cuda_graphs")


RULE = profile_rule(NAME, check)
