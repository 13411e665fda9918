"""Commands that go by what a run before them wrote: each trial starts from the user's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import hotlap, ladder_of
from simulated import LOSSES, World, climb, lever

from hotlap.errors import UsageError
from hotlap.records.ladder import Trial
from hotlap.tuner.tune import TuneRequest, Tuning, Watcher

TRAINING = """
import os, sys
import torch
from torch import nn

model = nn.Linear(8, 4)
first = START
x, y = torch.randn(6400, 8), torch.randint(4, (6400,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
for epoch in range(first, 20):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.save(model.state_dict(), "out/last.pt")
"""
STARTS = {
    "resumes": """0
os.makedirs("out", exist_ok=True)
if os.path.exists("out/last.pt"):
    model.load_state_dict(torch.load("out/last.pt"))""",
    "has ended": """20 if os.path.exists("out") else 0
os.makedirs("out", exist_ok=True)""",
    "refuses": """0
os.makedirs("out")""",
}


@pytest.fixture(params=STARTS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING.replace("START", STARTS[request.param]))
    return tmp_path


def test_every_trial_starts_from_the_users_own_files(project: Path) -> None:
    options = ("--only", "gc_pauses", "--steps", "18", "--json", "ladder.json")
    done = hotlap(project, "tune", "--budget", "1", *options, "train.py")
    assert done.returncode == 0, done.stderr
    assert "goes by what the first one wrote (as out" in done.stderr
    rungs = [one for one in ladder_of(project)["rungs"] if one["state"] != "not tried"]
    assert {one["loss_verdict"] for one in rungs} == {"bit for bit over 30 steps"}
    assert not (project / "out").exists()


def test_a_sweep_goes_on_where_files_were_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("START", STARTS["refuses"]))
    options = ("--sweep", "batch", "--budget", "0.5", "--steps", "10", "--json", "sweep.json")
    done = hotlap(tmp_path, "tune", *options, "train.py")
    assert done.returncode == 0, done.stderr
    second = json.loads((tmp_path / "sweep.json").read_text())[1]
    assert (second["factor"], second["state"]) == (2, "ok")


class Files(World):
    """A training that goes by the files of the one before it, until they are put back."""

    is_put_back = False

    def make(self, settings: Mapping[str, str], *numbers: Any) -> Trial:
        trial = super().make(settings, *numbers)
        if self.n_made == 1 or self.is_put_back:
            return trial
        return replace(trial, losses=tuple(loss * 0.9**self.n_made for loss in LOSSES))

    def start_over(self) -> bool:
        can, self.is_put_back = not self.is_put_back, True
        return can


def test_the_baseline_is_repeated_once_the_files_are_put_back() -> None:
    files = Files({"a": 1.5})
    one = climb(files, [lever("a")], start_over=files.start_over)
    assert one.best == {"a": "on"}
    assert [trial.losses for trial in one.reference.baselines] == [LOSSES, LOSSES]
    assert one.rungs[0].loss_verdict.startswith("bit for bit")


def test_where_they_cannot_be_put_back_the_levers_are_judged_as_before() -> None:
    one = climb(Files({"a": 1.5}), [lever("a")])
    assert one.best == {}
    assert len(one.reference.baselines) == 2


def test_a_command_that_runs_only_once_is_said_to(tmp_path: Path) -> None:
    def make(settings: Mapping[str, str], *numbers: Any) -> Trial:
        trial = World.make(world, settings, *numbers)
        return trial if world.n_made == 1 else replace(trial, state="crashed", reason="no more")

    world = World({})
    world.make = make  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="the command itself ran once, but not a second time: no"):
        climb(world, [lever("a")])


def test_a_climb_that_goes_on_puts_back_as_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    request = TuneRequest(("train.py",), tmp_path / ".hotlap", tmp_path / "hotlap.toml")
    before, after = (Tuning(request, Watcher()) for _ in range(2))
    before._state_folder.mkdir(parents=True)
    with before.scratch() as folder:
        assert not before.start_over()  # nothing was written
        (folder / "last.pt").touch()
        assert before.start_over()
        assert not before.start_over()  # that is all that can be done
    with after.scratch():
        assert after.start_over()
