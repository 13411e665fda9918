"""Rungs as data: what a lever came to, also where it was not tried, and its gain in words."""

from __future__ import annotations

from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import Rung, RungState
from hotlap.tuner.noise import Interval


def untried(lever: Lever, value: str, state: RungState, reason: str) -> Rung:
    """Of a lever that no trial was made with."""
    return Rung(
        lever=lever.name,
        value=value,
        state=state,
        samples_per_s=None,
        low=None,
        high=None,
        ratio=None,
        gain=None,
        gain_low=None,
        gain_high=None,
        memory_bytes=None,
        energy_per_sample_j=None,
        loss_verdict="",
        kept=False,
        reason=reason,
    )


def signed(gain: Interval) -> str:
    """A gain in percent, with its interval."""
    return (
        f"{100 * (gain.value - 1):+.1f} % "
        f"[{100 * (gain.low - 1):+.1f}, {100 * (gain.high - 1):+.1f}]"
    )


def inverse(gain: Interval) -> Interval:
    """What it is to be without that gain."""
    return Interval(1 / gain.value, 1 / gain.high, 1 / gain.low)
