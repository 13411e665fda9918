"""A Run speaks of what its step waits for: of the GPU, or of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.intervals import step_interval
from hotlap.planner.layout import Layout
from hotlap.planner.paces import paced
from hotlap.planner.step import step_time
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer
from hotlap.planner.work import StepWork, work_of

BY = Calibration()


def work(batch: int) -> StepWork:
    """Of GPT-2 on one H200: a sequence waits for the host, 64 of them for the GPU."""
    sizes = TransformerSizes(12, 768, 12, 3072, 50304)
    model = transformer("GPT-2", sizes, 1024, Arithmetic())
    training = Training(batch, batch, "bf16", "adamw")
    return work_of(model, Gpus("h200-141gb", 1, 1, 0.0), training, Layout())


def seconds(batch: int, by: Calibration) -> float:
    return step_time(work(batch), by).total


def test_a_large_batch_tells_the_pace_of_the_gpu_and_nothing_of_the_host() -> None:
    by = paced(work(64), BY, 1.3 * seconds(64, BY))
    assert seconds(64, by) == pytest.approx(1.3 * seconds(64, BY), rel=1e-6)
    assert by.gpu_pace == pytest.approx(1.3, rel=0.02)
    assert by.host_pace == 1.0
    # A single sequence waits for its host as it did.
    assert seconds(1, by) == pytest.approx(seconds(1, BY), rel=0.02)


def test_a_small_batch_tells_the_pace_of_the_host_and_nothing_of_the_gpu() -> None:
    by = paced(work(1), BY, 2 * seconds(1, BY))
    assert seconds(1, by) == pytest.approx(2 * seconds(1, BY), rel=1e-6)
    assert by.gpu_pace == 1.0
    assert by.host_pace == pytest.approx(2.0, rel=0.05)
    assert seconds(64, by) == pytest.approx(seconds(64, BY), rel=0.05)


def test_a_step_that_is_shorter_than_the_other_one_allows_speaks_of_both() -> None:
    measured = 0.05 * seconds(1, BY)
    by = paced(work(1), BY, measured)
    assert seconds(1, by) == pytest.approx(measured, rel=1e-6)
    assert by.gpu_pace == by.host_pace == pytest.approx(0.05)


def test_paces_scale_all_of_a_step() -> None:
    slower = replace(BY, gpu_pace=2.0, host_pace=2.0)
    for batch in (1, 8, 64):
        assert seconds(batch, slower) == pytest.approx(2 * seconds(batch, BY), rel=1e-9)


def test_a_run_makes_surer_what_it_speaks_of() -> None:
    def width(batch: int, by: Calibration) -> float:
        interval = step_interval(work(batch), by)
        return interval.high / interval.low

    of_the_gpu = paced(work(64), BY, 1.3 * seconds(64, BY))
    of_the_host = paced(work(1), BY, 2 * seconds(1, BY))
    assert width(64, of_the_gpu) < 1.2 < width(64, BY)
    assert width(1, of_the_host) < 1.25 < width(1, BY)
    assert width(64, of_the_host) == pytest.approx(width(64, BY), rel=0.02)
    assert width(1, of_the_gpu) == pytest.approx(width(1, BY), rel=0.02)
