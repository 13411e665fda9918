"""The loop has the device finish, or its memory given back, in every step.

What a barrier costs is seen in a profile, as idle time behind a wait; without one it is known where
the device waits for its host: then it is the time that the calls take. Memory that is given back is
asked for again at once, and the gain is that of a step without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places, without
from hotlap.doctor.habits import Call
from hotlap.doctor.inside.calls import BARRIERS
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "barriers"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """`torch.cuda.synchronize` and `empty_cache` in the loop."""
    calls = training.calls(*BARRIERS)
    often = [call for call in calls if training.per_step([call]) >= limits.least_per_step]
    if not training.is_on_gpu or not often:
        return
    yield Finding(
        NAME,
        "warning",
        f"{' and '.join(sorted({call.name for call in often}))} in every step",
        (f"at {places([call.site for call in often])}",),
        _gain(training, case, often),
        f"{places([call.site for call in often])}: take it out of the loop",
    )


def _gain(training: Training, case: Case, often: list[Call]) -> float | None:
    gives_back = [call for call in often if call.name == "torch.cuda.empty_cache"]
    kernels = case.kernels
    if kernels is not None and kernels.is_on_device:
        idle = kernels.share(kernels.idle().get("sync", 0.0))
        return without(idle + training.share_of(gives_back))
    counted = often if training.workload.waits_for_host else gives_back
    return without(training.share_of(counted)) if counted else None


RULE = training_rule(NAME, check)
