"""The loop has the device finish, or its memory given back, in every step.

The gain is that of a step without giving memory back, which is asked for again at once; what a
barrier costs is known where the device waits for its host.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "barriers"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """`torch.cuda.synchronize` and `empty_cache` in the loop."""
    calls = training.calls("torch.cuda.synchronize", "torch.cuda.empty_cache")
    often = [call for call in calls if training.per_step([call]) >= limits.least_per_step]
    if not training.is_on_gpu or not often:
        return
    gives_back = [call for call in often if call.name == "torch.cuda.empty_cache"]
    counted = often if training.workload.waits_for_host else gives_back
    yield Finding(
        NAME,
        "warning",
        f"{' and '.join(sorted({call.name for call in often}))} in every step",
        (f"at {places([call.site for call in often])}",),
        without(training.share_of(counted)) if counted else None,
        f"{places([call.site for call in often])}: take it out of the loop",
    )


RULE = training_rule(NAME, check)
