"""Schedules are pure functions of the step, and agree with torch's schedulers at every step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from hotlap.errors import UsageError
from hotlap.trainer.schedules import (
    ScheduleSettings,
    lr_factor,
    momentum_at,
    scaled_lr,
    set_rates,
    warmup_steps,
)

N_STEPS = 97
PEAK = 0.4


def sgd(lr: float = PEAK) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)


def of_torch(make: Callable[[torch.optim.Optimizer], Any], n_steps: int) -> list[dict[str, float]]:
    """The settings of the group at each step under a scheduler of torch."""
    optimizer = sgd()
    scheduler = make(optimizer)
    found = []
    for _ in range(n_steps):
        found.append({key: optimizer.param_groups[0][key] for key in ("lr", "momentum")})
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls its parts in a deprecated way
            scheduler.step()
    return found


def rates(settings: ScheduleSettings, n_steps: int = N_STEPS) -> list[float]:
    return [PEAK * lr_factor(step, n_steps, settings) for step in range(n_steps)]


def after_warmup(n: int, make: Callable[[torch.optim.Optimizer], Any]) -> Callable[..., Any]:
    def both(optimizer: torch.optim.Optimizer) -> Any:
        rise = lr_scheduler.LinearLR(optimizer, start_factor=1 / (n + 1), total_iters=n)
        return lr_scheduler.SequentialLR(optimizer, [rise, make(optimizer)], milestones=[n])

    return both


CASES = {
    "constant": (
        ScheduleSettings(name="constant"),
        lambda o: lr_scheduler.ConstantLR(o, factor=1.0),
    ),
    "cosine": (
        ScheduleSettings(name="cosine"),
        lambda o: lr_scheduler.CosineAnnealingLR(o, N_STEPS),
    ),
    "cosine to a tenth": (
        ScheduleSettings(name="cosine", final_fraction=0.1),
        lambda o: lr_scheduler.CosineAnnealingLR(o, N_STEPS, eta_min=0.1 * PEAK),
    ),
    "linear": (
        ScheduleSettings(name="linear", final_fraction=0.05),
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.05, N_STEPS),
    ),
    "step": (
        ScheduleSettings(name="step", milestones=(30, 60, 80), gamma=0.2),
        lambda o: lr_scheduler.MultiStepLR(o, [30, 60, 80], 0.2),
    ),
    "warm constant": (
        ScheduleSettings(name="constant", warmup_steps=9),
        after_warmup(9, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    ),
    "warm cosine": (
        ScheduleSettings(name="cosine", warmup_steps=10, final_fraction=0.01),
        after_warmup(
            10, lambda o: lr_scheduler.CosineAnnealingLR(o, N_STEPS - 10, eta_min=0.01 * PEAK)
        ),
    ),
    "warm linear": (
        ScheduleSettings(name="linear", warmup_steps=1),
        after_warmup(1, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, N_STEPS - 1)),
    ),
    "warm step": (
        ScheduleSettings(name="step", warmup_steps=10, milestones=(30, 60)),
        after_warmup(10, lambda o: lr_scheduler.MultiStepLR(o, [20, 50], 0.1)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_step_has_the_rate_that_torchs_scheduler_gives(case: str) -> None:
    settings, make = CASES[case]
    expected = [one["lr"] for one in of_torch(make, N_STEPS)]
    assert rates(settings) == pytest.approx(expected, rel=0, abs=1e-9)


@pytest.mark.parametrize("n_steps", [2, 3, 7, 100, 1001])
@pytest.mark.parametrize("peak_at", [0.3, 0.25, 0.9])
def test_onecycle_has_the_rates_and_momenta_of_torchs(n_steps: int, peak_at: float) -> None:
    settings = ScheduleSettings(
        name="onecycle",
        peak_at=peak_at,
        start_divisor=10,
        final_divisor=100,
        cycle_momentum=True,
        low_momentum=0.8,
        high_momentum=0.97,
    )
    expected = of_torch(
        lambda o: lr_scheduler.OneCycleLR(
            o,
            max_lr=PEAK,
            total_steps=n_steps,
            pct_start=peak_at,
            div_factor=10,
            final_div_factor=100,
            base_momentum=0.8,
            max_momentum=0.97,
        ),
        # A step of the scheduler after the last is an error of torch's.
        n_steps - 1,
    )
    steps = range(n_steps - 1)
    momenta = [momentum_at(step, n_steps, settings) for step in steps]
    assert rates(settings, n_steps)[:-1] == pytest.approx([e["lr"] for e in expected], abs=1e-9)
    assert momenta == pytest.approx([e["momentum"] for e in expected], abs=1e-9)
    assert lr_factor(n_steps - 1, n_steps, settings) == pytest.approx(1 / 1000, abs=1e-12)
    assert momentum_at(n_steps - 1, n_steps, settings) == pytest.approx(0.97)


def test_a_cycle_whose_peak_is_the_first_step_starts_at_the_peak() -> None:
    settings = ScheduleSettings(name="onecycle", peak_at=0.25)
    assert lr_factor(0, 4, settings) == 1.0
    assert lr_factor(0, 1, settings) < 1.0


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_the_peak_comes_right_after_the_warmup_and_no_step_is_lost_at_zero(name: Any) -> None:
    settings = ScheduleSettings(name=name, warmup_steps=10)
    factors = [lr_factor(step, 50, settings) for step in range(50)]
    assert factors[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert max(factors[:10]) < 1.0 == factors[10]
    assert min(factors) > 0


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_end_is_the_final_fraction_and_stays_there(name: Any) -> None:
    settings = ScheduleSettings(name=name, final_fraction=0.2)
    assert lr_factor(50, 50, settings) == pytest.approx(0.2)
    assert lr_factor(500, 50, settings) == pytest.approx(0.2)


def test_a_warmup_by_fraction_is_that_share_of_the_steps() -> None:
    by_fraction = ScheduleSettings(name="cosine", warmup_fraction=0.1)
    by_steps = ScheduleSettings(name="cosine", warmup_steps=20)
    assert warmup_steps(200, by_fraction) == 20
    assert rates(by_fraction, 200) == rates(by_steps, 200)
    assert lr_factor(0, 1, ScheduleSettings(warmup_fraction=0.9)) == 1.0


def test_only_a_cycle_moves_the_momentum() -> None:
    assert momentum_at(3, 10, ScheduleSettings(name="cosine", cycle_momentum=True)) is None
    assert momentum_at(3, 10, ScheduleSettings(name="onecycle")) is None


def test_rates_reach_all_groups_and_the_momentum_reaches_adams_first_beta() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    other = torch.nn.Parameter(torch.zeros(1))
    adam = torch.optim.AdamW([{"params": [parameter]}, {"params": [other]}], lr=1.0)
    set_rates(adam, 0.25, 0.8)
    assert [(g["lr"], g["betas"]) for g in adam.param_groups] == [(0.25, (0.8, 0.999))] * 2
    momentum = sgd()
    set_rates(momentum, 0.125)
    assert (momentum.param_groups[0]["lr"], momentum.param_groups[0]["momentum"]) == (0.125, 0.9)
    set_rates(momentum, 0.125, 0.7)
    assert momentum.param_groups[0]["momentum"] == 0.7


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"name": "exponential"}, "schedule.name"),
        ({"warmup_steps": -1}, "schedule.warmup_steps"),
        ({"warmup_fraction": 1.0}, "schedule.warmup_fraction"),
        ({"warmup_fraction": float("nan")}, "schedule.warmup_fraction"),
        ({"warmup_steps": 5, "warmup_fraction": 0.1}, "give one of them"),
        ({"name": "onecycle", "warmup_steps": 5}, "schedule.peak_at"),
        ({"final_fraction": 1.5}, "schedule.final_fraction"),
        ({"name": "step"}, "schedule.milestones"),
        ({"name": "step", "milestones": (20, 10)}, "schedule.milestones"),
        ({"name": "step", "milestones": (0, 10)}, "schedule.milestones"),
        ({"name": "step", "milestones": (10,), "gamma": 0.0}, "schedule.gamma"),
        ({"name": "onecycle", "peak_at": 1.0}, "schedule.peak_at"),
        ({"name": "onecycle", "start_divisor": 0.5}, "schedule.start_divisor"),
        ({"name": "onecycle", "final_divisor": 0.0}, "schedule.final_divisor"),
        ({"name": "onecycle", "low_momentum": 0.96}, "schedule.low_momentum"),
    ],
)
def test_an_impossible_setting_is_named(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        ScheduleSettings(**values)


def test_a_warmup_longer_than_the_training_is_refused() -> None:
    with pytest.raises(UsageError, match=r"warmup_steps is 10; the training has 10 steps"):
        lr_factor(0, 10, ScheduleSettings(warmup_steps=10))


def test_the_rate_goes_with_the_batch_by_the_rule_asked_for() -> None:
    assert scaled_lr(0.1, 1024, 256, "none") == 0.1
    assert scaled_lr(0.1, 1024, 256, "linear") == pytest.approx(0.4)
    assert scaled_lr(0.1, 1024, 256, "sqrt") == pytest.approx(0.2)
    with pytest.raises(UsageError, match="base_batch is 0"):
        scaled_lr(0.1, 1024, 0, "linear")
    with pytest.raises(UsageError, match="cubic"):
        scaled_lr(0.1, 1024, 256, "cubic")  # type: ignore[arg-type]
