"""The host waits for the device in the middle of the step, to read a value of it.

While it waits it launches nothing, and the device runs dry afterwards. What that costs is known
where the device waits for its host: then it is the time that the calls take.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place, places, without
from hotlap.doctor.inside.calls import SYNCS as READS
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "syncs"
SYNCS = (*(f"Tensor.{name}" for name in READS), "Tensor.to")


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Calls that read a value of the device, by line."""
    calls = training.calls(*SYNCS)
    often = [call for call in calls if training.per_step([call]) >= limits.least_per_step]
    if not often:
        return
    yield Finding(
        NAME,
        "advice",
        f"the host waits for the device {training.per_step(often):.3g} times a step",
        tuple(f"{call.name} at {place(call.site)}" for call in often[:5]),
        without(training.share_of(often)) if training.workload.waits_for_host else None,
        f"{places([call.site for call in often])}: keep values on the device, read them every "
        "hundred steps or so",
    )


RULE = training_rule(NAME, check)
