"""The GPU draws little of the power that it may: it is idle for much of the time."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "low_power"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Mean power against the limit of the GPUs."""
    mean_w, world = training.run.power.mean_w, max(1, len(training.run.ranks))
    limit_w = case.gpus[0].power_limit_w if case.gpus else None
    if mean_w is None or not limit_w or mean_w >= limits.low_power * limit_w * world:
        return
    yield Finding(
        NAME,
        "note",
        f"{mean_w / world:.0f} W of {limit_w:.0f} W a GPU",
        (
            f"{training.run.power.samples_per_j:.3g} samples a joule"
            if training.run.power.samples_per_j
            else "energy goes by the hour then, not by the work",
        ),
        None,
        "what keeps the GPU waiting is in the other findings; energy falls with the time",
    )


RULE = training_rule(NAME, check)
