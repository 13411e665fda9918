"""What a measured step says of the GPU, or of its host: of the one that it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotlap.planner.calibration import Calibration
from hotlap.planner.step import step_time
from hotlap.planner.work import StepWork

PACES = ("gpu_pace", "host_pace")

LEAST, MOST = 0.1, 100.0
"""Paces that are thinkable."""
N_HALVINGS = 60


def paced(work: StepWork, by: Calibration, measured_s: float) -> Calibration:
    """With the pace of the one that decides such that the step takes as long as was measured.

    What a small batch waits for its host tells nothing of the GPU, which a large one waits for. A
    step that is shorter than the other one alone would allow speaks of both.
    """
    # The one without which the step would be the shorter one.
    name = min(PACES, key=lambda one: _total(work, by, one, LEAST))
    low, high = LEAST, MOST
    if not _total(work, by, name, low) < measured_s < _total(work, by, name, high):
        both = measured_s / step_time(work, by).total
        return replace(by, gpu_pace=by.gpu_pace * both, host_pace=by.host_pace * both)
    for _ in range(N_HALVINGS):
        middle = (low * high) ** 0.5
        if _total(work, by, name, middle) < measured_s:
            low = middle
        else:
            high = middle
    return _with(by, name, high)


def _total(work: StepWork, by: Calibration, name: str, pace: float) -> float:
    return step_time(work, _with(by, name, pace)).total


def _with(by: Calibration, name: str, pace: float) -> Calibration:
    changed: dict[str, Any] = {name: pace}
    return replace(by, **changed)
