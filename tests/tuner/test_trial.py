"""Real trials: every way to end is a state, and nothing of one is left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import gone

from hotlap.levers import find_levers
from hotlap.levers.common.workload import Workload
from hotlap.records.ladder import Trial
from hotlap.tuner.given_input import MISSING
from hotlap.tuner.trial import (
    TrialPlan,
    TrialRequest,
    marked_processes,
    run_trial,
    why_not_tuned,
)

SCRIPT = """
import os, signal, subprocess, sys, time
ME = os.getpid()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(400, 8), torch.randint(4, (400,)))
for step, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    loss = nn.functional.cross_entropy(model(x), y)
    if step == 20:
        ENDING
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def trial(tmp_path: Path, ending: str, timeout_s: float = 60, **fields: object) -> Trial:
    (tmp_path / "train.py").write_text(SCRIPT.replace("ENDING", ending))
    plan = TrialPlan(("train.py",), tmp_path, tmp_path / "runs", find_levers())
    made = run_trial(plan, TrialRequest({}, 30, 5, timeout_s, **fields), Workload())  # type: ignore[arg-type]
    return made


def test_a_trial_that_goes_well_has_its_figures(tmp_path: Path) -> None:
    one = trial(tmp_path, "pass")
    assert (one.state, one.n_steps, one.samples_per_step) == ("ok", 35, pytest.approx(4.0))
    assert len(one.step_s) == 30
    assert one.last_lines == ()
    assert len(one.losses) == 35
    assert [f.update for f in one.fingerprints] == list(range(12))
    assert all(len(f.gradients) == len(f.moved) == 2 for f in one.fingerprints)
    assert all(len(f.inputs) == 1 for f in one.fingerprints)


def test_hotlap_seeds_a_script_that_does_not(tmp_path: Path) -> None:
    first, again = trial(tmp_path, "pass"), trial(tmp_path, "pass")
    other = trial(tmp_path, "pass", seed=1)
    assert first.losses == again.losses
    assert first.losses != other.losses


def test_hotlap_seeds_what_else_a_script_draws_with(tmp_path: Path) -> None:
    drawn = SCRIPT.replace("model = nn", "import numpy, random\nmodel = nn").replace(
        "model(x)", "model(x * random.random() + numpy.random.rand())"
    )
    (tmp_path / "train.py").write_text(drawn.replace("ENDING", "pass"))
    plan = TrialPlan(("train.py",), tmp_path, tmp_path / "runs", ())
    first, again = (run_trial(plan, TrialRequest({}, 30, 5, 60), Workload()) for _ in range(2))
    assert first.state == "ok"
    assert first.losses == again.losses


def test_another_seed_also_moves_one_that_the_script_sets(tmp_path: Path) -> None:
    moved = SCRIPT.replace("model = nn", "torch.manual_seed(7)\nmodel = nn")
    (tmp_path / "train.py").write_text(moved.replace("ENDING", "pass"))
    plan = TrialPlan(("train.py",), tmp_path, tmp_path / "runs", ())
    first, other = (
        run_trial(plan, TrialRequest({}, 30, 5, 60, seed=seed), Workload()) for seed in (0, 1)
    )
    assert first.losses != other.losses


@pytest.mark.parametrize(
    ("ending", "state", "reason"),
    [
        ("raise ValueError('no more')", "crashed", "it ended with exit code 1 after 20 steps"),
        ("os.kill(ME, signal.SIGILL)", "crashed", "it ended with signal SIGILL after 20 steps"),
        ("os.kill(ME, signal.SIGSEGV)", "crashed", "it ended with signal SIGSEGV after 20 steps"),
        ("torch.empty(1 << 55)", "oom", "it ran out of memory"),
        ("loss = loss * float('nan')", "diverged", "the loss of step 21 is nan"),
        ("loss = loss * float('inf')", "diverged", "the loss of step 21 is inf"),
    ],
)
def test_an_ending_is_a_state(tmp_path: Path, ending: str, state: str, reason: str) -> None:
    one = trial(tmp_path, f"print('last words', flush=True); {ending}")
    assert (one.state, one.reason) == (state, reason)
    assert any("last words" in line for line in one.last_lines)


def test_a_trial_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    hang = "open('child', 'w').write(str(child.pid)); time.sleep(1000)"
    one = trial(tmp_path, f"{child}; {hang}", timeout_s=15)
    assert one.state == "hung"
    assert one.reason == "it had not ended after 15 s and was ended"
    assert gone(int((tmp_path / "child").read_text()))
    (name,) = [folder.name for folder in (tmp_path / "runs").iterdir()]
    assert marked_processes(name) == []


def short_trial(tmp_path: Path, script: str) -> Trial:
    (tmp_path / "train.py").write_text(script)
    plan = TrialPlan(("train.py",), tmp_path, tmp_path / "runs", ())
    return run_trial(plan, TrialRequest({}, 30, 5, 60), Workload())


@pytest.mark.parametrize("n_steps", [3, 12])
def test_a_script_with_few_steps_is_said_to_have_too_few(tmp_path: Path, n_steps: int) -> None:
    """All in the warm-up of five steps, or hardly any behind it."""
    script = SCRIPT.replace("400", str(4 * n_steps)).replace("ENDING", "pass")
    one = short_trial(tmp_path, script)
    told = f"it ends after {n_steps} steps, too few to be measured (at least 13 are needed)"
    assert (one.state, one.reason) == ("too short", told)
    assert why_not_tuned(one) == f"the command itself cannot be tuned: {told}"


def test_a_script_that_fails_before_its_first_step_does_not_run(tmp_path: Path) -> None:
    one = short_trial(tmp_path, "raise SystemExit(3)")
    told = "it ended with exit code 3 before its first step"
    assert why_not_tuned(one) == f"the command itself does not run: {told}"


@contextlib.contextmanager
def standard_input(descriptor: int) -> Iterator[None]:
    kept = os.dup(0)
    os.dup2(descriptor, 0)
    os.close(descriptor)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


READS = "import sys\nprint('got', sys.stdin.read().split())\nraise SystemExit(1)"


def test_every_trial_reads_the_file_on_standard_input_from_where_it_stands(
    tmp_path: Path,
) -> None:
    (tmp_path / "words").write_text("taken left over")
    with standard_input(os.open(tmp_path / "words", os.O_RDONLY)):
        os.read(0, len("taken "))
        for _ in range(2):
            assert short_trial(tmp_path, READS).last_lines == ("got ['left', 'over']",)
        assert os.read(0, 100) == b"left over"


def test_what_a_pipe_holds_is_left_there_and_told(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # whose other end stays open: nothing may wait for its end
    os.write(writing, b"0.1")
    with standard_input(reading):
        one = short_trial(tmp_path, READS)
        assert one.last_lines == ("got []",)
        assert f"before its first step; {MISSING}\n" in why_not_tuned(one)
        assert os.read(0, 100) == b"0.1"
        assert MISSING not in why_not_tuned(one)
    os.close(writing)


def test_a_script_that_asks_is_told_that_nobody_answers(tmp_path: Path) -> None:
    assert MISSING in why_not_tuned(short_trial(tmp_path, "input('name: ')"))


def test_a_script_without_a_training_step_is_said_to_have_none(tmp_path: Path) -> None:
    one = short_trial(tmp_path, "import torch")
    assert (one.state, one.reason) == ("too short", "it ended without a training step")
