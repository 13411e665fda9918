"""Anomaly detection is on: every operation is followed, every gradient looked through for NaN.

The gain is what switching it off usually saves of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, lever_gain, places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "anomaly"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The flag, as the script leaves it when training begins."""
    if not training.workload.flags.get("anomaly"):
        return
    names = ("set_detect_anomaly", "detect_anomaly")
    sites = [file.site(call) for file, call in training.script.calls(*names)]
    yield Finding(
        NAME,
        "warning",
        "anomaly detection is on",
        (f"switched on at {places(sites)}" if sites else "as the model was first called",),
        lever_gain(training, "debug_off"),
        lever_cure(training, "debug_off"),
    )


RULE = training_rule(NAME, check)
