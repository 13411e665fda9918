"""The shipped calibration on the published measurements that lie in benchmarks/planner.

Whether it holds for what it did not see is what `benchmarks/planner/run.py` tests, in minutes.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "planner"
sys.path.insert(0, str(BENCHMARK))

from cases import Case, all_cases  # noqa: E402

from hotlap.planner.calibration import Calibration  # noqa: E402
from hotlap.planner.intervals import step_interval  # noqa: E402
from hotlap.planner.step import step_time  # noqa: E402
from hotlap.planner.work import work_of  # noqa: E402

BY = Calibration()
MOST = {
    "vtrain_a100_multi": 0.10,
    "vtrain_a100_single": 0.15,
    "mosaic A100-80": 0.12,
    "mosaic A100-40": 0.12,
    "mosaic H100": 0.15,
    "mosaic H100 large": 0.15,
    "mosaic H100 fp8": 0.15,
    "megatron sc21": 0.15,
    "korthikanti": 0.15,
}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return all_cases()


def of(section: str, cases: list[Case]) -> list[Case]:
    """A section's cases; a large one is thinned evenly."""
    found = [case for case in cases if case.section == section]
    return found[:: max(1, len(found) // 150)]


@pytest.mark.parametrize("section", MOST)
def test_step_times_are_near_the_published_ones(section: str, cases: list[Case]) -> None:
    errors = []
    for case in of(section, cases):
        work = work_of(case.model, case.gpus, case.training, case.layout)
        errors.append(abs(step_time(work, BY).total / case.step_s - 1))
    assert statistics.mean(errors) <= MOST[section]


def test_nine_of_ten_lie_in_their_interval(cases: list[Case]) -> None:
    inside, widths = [], []
    for case in (case for section in MOST for case in of(section, cases)):
        work = work_of(case.model, case.gpus, case.training, case.layout)
        interval = step_interval(work, BY)
        inside.append(interval.low <= case.step_s <= interval.high)
        widths.append((interval.high - interval.low) / 2 / interval.value)
    assert statistics.mean(inside) >= 0.9
    assert statistics.median(widths) <= 0.20
