"""Gradients are scaled although the model computes in bf16, whose range is that of fp32.

Scaling costs a pass over all gradients, and on a GPU the host waits for its verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.workload import Site
from hotlap.records.finding import Finding

NAME = "scaler_with_bf16"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A GradScaler beside bf16 autocast."""
    dtype = training.habits.of("settings").get("autocast")
    if dtype != "bfloat16" or not training.habits.of("updates").get("n_scaled"):
        return
    yield Finding(
        NAME,
        "advice",
        "a GradScaler is used with bf16, which does not need one",
        (f"{training.habits.of('updates')['n_scaled']} scaled updates in bfloat16 autocast",),
        None,
        f"{places(_scalers(training))}: GradScaler(enabled=False), or none",
    )


def _scalers(training: Training) -> list[Site]:
    return [file.site(call) for file, call in training.script.calls("GradScaler")]


RULE = training_rule(NAME, check)
