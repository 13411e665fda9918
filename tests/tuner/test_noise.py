"""Rates, their errors and ratios of them: intervals that hold what they promise."""

from __future__ import annotations

import random

import pytest

from hotlap.tuner.noise import Between, Measured, ratio, typical_step, within_error


def test_a_burst_of_a_neighbours_work_does_not_move_the_typical_step() -> None:
    steps = [0.1] * 160
    steps[40:48] = [0.5] * 8
    assert typical_step(steps) == pytest.approx(0.1)


def test_stalls_that_come_regularly_do() -> None:
    steps = [0.1, 0.1, 0.1, 0.5] * 40
    assert typical_step(steps) == pytest.approx(0.2, rel=0.05)


def test_few_steps_have_an_error_all_the_same() -> None:
    assert within_error([0.1, 0.1, 0.2, 0.2]) > 0.1
    assert typical_step([0.3]) == 0.3
    assert within_error([0.3]) == 0.0


def test_the_interval_of_a_ratio_holds_it_19_times_of_20() -> None:
    draw = random.Random(1)
    inside = 0
    for _ in range(400):
        rates = [[s * (1 + draw.gauss(0, 0.02)) for _ in range(2)] for s in (100.0, 130.0)]
        others = [[1 + draw.gauss(0, 0.02) for _ in range(2)] for _ in range(4)]
        between = Between.of([*rates, *others])
        slower, faster = (Measured(tuple(r), (0.0, 0.0)) for r in rates)
        result = ratio(faster, slower, between)
        inside += result.low <= 1.3 <= result.high
    assert inside >= 0.93 * 400


def test_repetitions_correct_the_first_guess() -> None:
    quiet = Between.of([[100.0, 100.1]] * 30)
    loud = Between.of([[100.0, 120.0]] * 30)
    assert quiet.spread < 0.005 < 0.08 < loud.spread
