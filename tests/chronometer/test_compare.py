"""Two Runs side by side: the ratio of their steps, and whether it is more than noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from making import make_rank, make_table, merged

from hotlap.chronometer.compare import compare, step_ratio
from hotlap.records import RankRecord, Run


def noisy(mean: float, n: int, seed: int) -> list[float]:
    """Steps with 5 % of noise, and slow and fast stretches of 5 steps."""
    rng = random.Random(seed)
    slow = [rng.gauss(0, 0.03) for _ in range(n // 5 + 1)]
    return [mean * (1 + rng.gauss(0, 0.05) + slow[i // 5]) for i in range(n)]


def test_a_clear_difference_is_outside_the_noise() -> None:
    ratio = step_ratio(noisy(1.0, 200, 1), noisy(0.8, 200, 2))
    assert ratio.outside_noise
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1.25 < ratio.high


def test_equal_trainings_are_seldom_told_apart() -> None:
    told_apart = [
        step_ratio(noisy(1.0, 200, seed), noisy(1.0, 200, seed + 1000)).outside_noise
        for seed in range(200)
    ]
    assert sum(map(bool, told_apart)) <= 20, "a 95 % interval is wrong in 10 of 200"


def test_slower_is_told_as_well_as_faster() -> None:
    fast, slow = noisy(0.8, 200, 1), noisy(1.0, 200, 2)
    assert step_ratio(fast, slow).value == pytest.approx(1 / step_ratio(slow, fast).value)
    assert step_ratio(fast, slow).outside_noise


@pytest.mark.parametrize("n", [1, 7])
def test_too_few_steps_say_nothing_about_noise(n: int) -> None:
    ratio = step_ratio([1.0] * n, [2.0] * 100)
    assert ratio.value == 0.5
    assert ratio.outside_noise is None


def test_steps_without_any_spread_have_an_interval_of_no_width() -> None:
    ratio = step_ratio([2.0] * 50, [1.0] * 50)
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def run_of(lengths_ns: Sequence[int], **changes: Any) -> tuple[Run, list[RankRecord]]:
    ranks = [make_rank(make_table([{"forward": ns} for ns in lengths_ns]))]
    return replace(merged(ranks, warmup=2), **changes), ranks


def test_warm_up_is_left_out_of_the_comparison() -> None:
    a, a_ranks = run_of([9000, 9000, *[200] * 20])
    b, b_ranks = run_of([100] * 22)
    assert compare(a, b, a_ranks, b_ranks).ratio.value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"command": ("other.py",)}, "not the same command"),
        ({"levers": {"threads": "1"}}, "not the same levers"),
        ({"world_size": 8}, "not as many ranks"),
        ({"machine": {"hostname": "elsewhere"}}, "not the same machine"),
    ],
)
def test_what_makes_two_runs_unlike_is_noted(changes: dict[str, Any], words: str | None) -> None:
    (a, a_ranks), (b, b_ranks) = run_of([100] * 20), run_of([100] * 20, **changes)
    notes = compare(a, b, a_ranks, b_ranks).notes
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]
