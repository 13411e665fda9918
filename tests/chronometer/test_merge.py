"""Rank files to a Run: which steps count, how phases add up, what is said about the ranks."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from making import make_rank, make_table, merged

from hotlap.records import ValidationPass

STEP = {"data": 10, "forward": 20, "backward": 40, "optimizer": 20, "other": 10}


def test_phases_known_on_some_steps_are_scaled_to_the_mean_step() -> None:
    table = make_table([STEP, None, None, STEP], totals_ns=[100, 150, 250, 100])
    run = merged([make_rank(table)])
    assert run.step_s is not None
    assert run.phases_s is not None
    assert run.step_s.mean == pytest.approx(150e-9)
    assert run.phases_s.backward == pytest.approx(60e-9)
    assert sum(asdict(run.phases_s).values()) == pytest.approx(run.step_s.mean)
    assert any("2 of 4 steps" in note for note in run.notes)


def test_probed_steps_are_left_out_of_the_length_of_a_step() -> None:
    slow = {phase: 5 * ns for phase, ns in STEP.items()}
    table = make_table([slow, None, None, slow], totals_ns=[500, 100, 100, 500], probes=[0, 3])
    run = merged([make_rank(table)])
    assert run.step_s is not None
    assert run.phases_s is not None
    assert run.step_s.mean == pytest.approx(100e-9)
    assert run.phases_s.backward == pytest.approx(40e-9)
    assert sum(asdict(run.phases_s).values()) == pytest.approx(100e-9)
    assert run.samples_per_s == pytest.approx(8 / 100e-9)


def test_where_every_step_was_probed_their_lengths_count_after_all() -> None:
    run = merged([make_rank(make_table([STEP, STEP], probes=[0, 1]))])
    assert run.step_s is not None
    assert run.step_s.mean == pytest.approx(100e-9)


def test_warm_up_is_left_out_of_the_figures_and_not_of_the_losses() -> None:
    slow = {phase: 10 * ns for phase, ns in STEP.items()}
    run = merged([make_rank(make_table([slow, slow, STEP, STEP]))], warmup=2)
    assert asdict(run.steps) == {"measured": 2, "warmup": 2}
    assert run.step_s is not None
    assert run.step_s.mean == pytest.approx(100e-9)
    assert len(run.loss) == 4


@pytest.mark.parametrize(("n_steps", "warmup"), [(0, 0), (1, 0), (2, 1), (50, 5), (500, 10)])
def test_the_automatic_warm_up_is_a_tenth_between_one_and_ten(n_steps: int, warmup: int) -> None:
    run = merged([make_rank(make_table([STEP] * n_steps))], warmup=None)
    assert run.steps.warmup == warmup


def test_a_warm_up_longer_than_the_training_leaves_no_figures() -> None:
    run = merged([make_rank(make_table([STEP] * 4))], warmup=100)
    assert asdict(run.steps) == {"measured": 0, "warmup": 4}
    assert (run.step_s, run.phases_s, run.samples_per_s) == (None, None, None)
    assert len(run.loss) == 4


def test_no_ranks_make_a_run_without_figures() -> None:
    run = merged([])
    assert (run.step_s, run.world_size, run.loss, run.ranks) == (None, None, (), ())
    assert run.verdict == "no training step was measured"


def test_of_several_trainings_the_one_with_most_steps_is_told() -> None:
    short = make_rank(make_table([STEP] * 2), pid=1)
    long = make_rank(make_table([STEP] * 5), pid=2)
    run = merged([short, long])
    assert run.steps.measured == 5
    assert len(run.ranks) == 1
    assert any("2 separate training processes" in note for note in run.notes)


def test_processes_that_only_looked_are_no_training() -> None:
    run = merged([make_rank(make_table([STEP] * 3)), make_rank(make_table([]), pid=2)])
    assert run.steps.measured == 3
    assert run.notes == ()


def test_missing_ranks_are_noted() -> None:
    ranks = [make_rank(make_table([STEP] * 3), rank=rank, world_size=4) for rank in (0, 2)]
    run = merged(ranks)
    assert run.world_size == 4
    assert any("only 2 of 4 ranks" in note for note in run.notes)


def test_a_rank_with_fewer_steps_bounds_the_steps_of_all() -> None:
    ranks = [
        make_rank(make_table([STEP] * n), rank=rank, world_size=2) for rank, n in enumerate((5, 3))
    ]
    assert merged(ranks).steps.measured == 3


def test_an_unknown_count_of_samples_is_null_and_not_zero() -> None:
    run = merged([make_rank(make_table([STEP] * 3, samples=None))])
    assert run.samples_per_s is None
    assert run.ranks[0].samples is None
    assert run.steps_per_s == pytest.approx(1 / 100e-9)


def test_a_validation_cut_short_is_estimated_for_the_full_set() -> None:
    passes = (ValidationPass(100, 5, 50), ValidationPass(300, 5, 50))
    run = merged([make_rank(make_table([STEP] * 3), validations=passes)])
    assert run.validation is not None
    assert asdict(run.validation) == {
        "n": 2,
        "mean_s": pytest.approx(200e-9),
        "batches": 10,
        "full_set_s": pytest.approx(2000e-9),
    }


@pytest.mark.parametrize(
    ("phase", "words"),
    [("data", "waits for data"), ("backward", "backward pass"), ("other", "other code")],
)
def test_the_verdict_names_the_longest_phase(phase: str, words: str) -> None:
    run = merged([make_rank(make_table([{**STEP, phase: 300}] * 3))])
    share = round(100 * 300 / (sum(STEP.values()) - STEP[phase] + 300))
    assert run.verdict.startswith(f"{share} %")
    assert words in run.verdict
