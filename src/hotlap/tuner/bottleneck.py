"""What the step of a trial waits for: a lever for anything else gains nothing while it does."""

from __future__ import annotations

from typing import Literal

from hotlap.records.ladder import Trial

Bottleneck = Literal["host", "data", "device"]
"""The host that launches kernels; batches and their copies; the device, which may be a CPU."""


def bottleneck(trial: Trial) -> Bottleneck:
    """By what the device waited for, and by the phases."""
    if trial.waits_for_host:
        return "host"
    waiting_s = sum(trial.phases_s.get(name, 0.0) for name in ("data", "transfer"))
    return "data" if 2 * waiting_s > sum(trial.phases_s.values()) else "device"
