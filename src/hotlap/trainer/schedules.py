"""The learning rate over the steps of a training, as a pure function of the step.

A schedule has no state: to resume at a step is to ask for that step. Steps count updates from 0.

    warm-up   linear, from 1 / (n + 1) of the peak; the step after the n steps is at the peak
    decay     from the peak to `final_fraction` of it, which it would reach at step `n_steps`,
              one after the last: so no step is spent at a rate of 0
    onecycle  its own rise and fall, as torch's OneCycleLR: the last step is at the lowest rate
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from hotlap.errors import UsageError
from hotlap.wording import n_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

ScheduleName = Literal["constant", "linear", "cosine", "onecycle", "step"]
ScalingRule = Literal["none", "linear", "sqrt"]


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The shape of the learning rate; its height is the optimizer's `lr`."""

    name: ScheduleName = "cosine"
    warmup_steps: int = 0
    """Of all but onecycle, which rises by itself."""
    warmup_fraction: float = 0.0
    """The same as a share of the training; one of the two at most."""
    final_fraction: float = 0.0
    """Of linear and cosine: the rate at the end relative to the peak."""
    start_divisor: float = 25.0
    """Of onecycle: the peak over the first rate."""
    final_divisor: float = 1e4
    """Of onecycle: the first rate over the last."""
    peak_at: float = 0.3
    """Of onecycle: the share of the training that rises."""
    cycle_momentum: bool = False
    """Of onecycle: the momentum falls while the rate rises, and rises while it falls."""
    low_momentum: float = 0.85
    high_momentum: float = 0.95
    milestones: tuple[int, ...] = ()
    """Of step: the steps from which on the rate is multiplied by `gamma` once more."""
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _check_warmup(self)
        _check_shape(self)
        if self.name == "onecycle":
            _check_cycle(self)


def _check_warmup(settings: ScheduleSettings) -> None:
    steps, fraction = settings.warmup_steps, settings.warmup_fraction
    if steps < 0:
        raise UsageError(f"schedule.warmup_steps is {steps}; it has to be at least 0")
    if not 0 <= fraction < 1:
        raise UsageError(
            f"schedule.warmup_fraction is {fraction}; it has to be at least 0 and below 1"
        )
    if steps and fraction:
        raise UsageError(
            f"schedule.warmup_steps is {steps} and schedule.warmup_fraction is {fraction}; "
            "give one of them"
        )
    if settings.name == "onecycle" and (steps or fraction):
        raise UsageError(
            "schedule.name is 'onecycle', which warms up by itself; set schedule.peak_at instead "
            "of a warm-up"
        )


def _check_shape(settings: ScheduleSettings) -> None:
    name, known = settings.name, get_args(ScheduleName)
    if name not in known:
        raise UsageError(f"schedule.name is {name!r}; there are {', '.join(known)}")
    if not 0 <= settings.final_fraction <= 1:
        raise UsageError(
            f"schedule.final_fraction is {settings.final_fraction}; it has to be from 0 to 1"
        )
    if not 0 < settings.gamma < math.inf:
        raise UsageError(f"schedule.gamma is {settings.gamma}; it has to be above 0")
    if name == "step" and not settings.milestones:
        raise UsageError("schedule.milestones is empty; schedule.name = 'step' needs at least one")
    marks = (0, *settings.milestones)
    if any(later <= earlier for earlier, later in pairwise(marks)):
        raise UsageError(
            f"schedule.milestones is {list(settings.milestones)}; they have to be above 0 and rise"
        )


def _check_cycle(settings: ScheduleSettings) -> None:
    for key in ("start_divisor", "final_divisor"):
        found = getattr(settings, key)
        if not 1 <= found < math.inf:
            raise UsageError(f"schedule.{key} is {found}; it has to be a number of at least 1")
    if not 0 < settings.peak_at < 1:
        raise UsageError(f"schedule.peak_at is {settings.peak_at}; it has to be between 0 and 1")
    low, high = settings.low_momentum, settings.high_momentum
    if not 0 <= low <= high < 1:
        raise UsageError(
            f"schedule.low_momentum is {low} and schedule.high_momentum is {high}; they have to be "
            "from 0 to below 1, the low one first"
        )


def lr_factor(step: int, n_steps: int, settings: ScheduleSettings) -> float:
    """The rate of a step relative to the peak; steps after the last are as the end."""
    if settings.name == "onecycle":
        lowest = 1 / settings.start_divisor
        ends = (lowest, 1.0, lowest / settings.final_divisor)
        return _rise_and_fall(step, n_steps, settings.peak_at, ends)
    n_warmup = warmup_steps(n_steps, settings)
    warm = min(1.0, (step + 1) / (n_warmup + 1))
    if settings.name == "step":
        n_passed = sum(step >= milestone for milestone in settings.milestones)
        return warm * settings.gamma**n_passed
    if settings.name == "constant" or step < n_warmup:
        return warm
    progress = min(1.0, (step - n_warmup) / (n_steps - n_warmup))
    left = 1 - progress if settings.name == "linear" else _half_cosine(progress)
    return settings.final_fraction + (1 - settings.final_fraction) * left


def momentum_at(step: int, n_steps: int, settings: ScheduleSettings) -> float | None:
    """The momentum of a step of onecycle; None where it stays what the optimizer has."""
    if settings.name != "onecycle" or not settings.cycle_momentum:
        return None
    low, high = settings.low_momentum, settings.high_momentum
    return _rise_and_fall(step, n_steps, settings.peak_at, (high, low, high))


def warmup_steps(n_steps: int, settings: ScheduleSettings) -> int:
    """How many steps warm up in a training of `n_steps`."""
    n_warmup = settings.warmup_steps or round(settings.warmup_fraction * n_steps)
    if settings.warmup_steps and n_warmup >= n_steps:
        raise UsageError(
            f"schedule.warmup_steps is {n_warmup}; the training has "
            f"{n_of(n_steps, 'step')}, it has to be fewer than those"
        )
    return min(n_warmup, n_steps - 1)


def _half_cosine(progress: float) -> float:
    """From 1 to 0, level at both ends."""
    return (1 + math.cos(math.pi * progress)) / 2


def _rise_and_fall(
    step: int, n_steps: int, peak_at: float, ends: tuple[float, float, float]
) -> float:
    """From the first value to the second and on to the third, each way along half a cosine."""
    first, middle, last = ends
    # Where torch's OneCycleLR has its peak, which need not be a whole step.
    peak = peak_at * n_steps - 1
    if step < peak:
        return middle + (first - middle) * _half_cosine(step / peak)
    progress = min(1.0, (step - peak) / (n_steps - 1 - peak))
    return last + (middle - last) * _half_cosine(progress)


def set_rates(optimizer: Optimizer, lr: float, momentum: float | None = None) -> None:
    """Give all groups a learning rate and, where there is one, a momentum (Adam's first beta)."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if momentum is None:
            continue
        if "momentum" in group:
            group["momentum"] = momentum
        if "betas" in group:
            group["betas"] = (momentum, group["betas"][1])


def scaled_lr(lr: float, batch: int, base_batch: int, rule: ScalingRule) -> float:
    """The learning rate for a batch, given that for another (Goyal et al., 2017; Krizhevsky, 2014).

    `linear` is the rule for SGD, `sqrt` the one for Adam and its kin.
    """
    for key, found in {"batch": batch, "base_batch": base_batch}.items():
        if found < 1:
            raise UsageError(f"{key} is {found}; it has to be at least 1")
    powers = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
    if rule not in powers:
        raise UsageError(f"the scaling rule is {rule!r}; there are {', '.join(powers)}")
    return lr * (batch / base_batch) ** powers[rule]
