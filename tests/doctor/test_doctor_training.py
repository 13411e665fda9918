"""`hotlap doctor COMMAND` as a user starts it: its output, its document, and commands that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import TIMEOUT_S, environment

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)

LOOP = """
import helper
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, i):
        time.sleep(0.005)
        return super().__getitem__(i)

model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
data = Slow(torch.randn(4096, 32), torch.randint(4, (4096,)))
for step, (inputs, targets) in enumerate(DataLoader(data, batch_size=8)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    helper.keep(loss)
    print("step", step, flush=True)
    END
"""
HELPER = "def keep(loss):\n    return None\n"


class Done:
    """What a doctor's visit left."""

    def __init__(self, folder: Path, words: list[str], code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        written = folder / "diagnosis.json"
        self.document: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}

    @property
    def rules(self) -> list[str]:
        return [finding["rule"] for finding in self.document["findings"]]

    def finding(self, rule: str) -> dict[str, Any]:
        return next(one for one in self.document["findings"] if one["rule"] == rule)


def doctor(folder: Path, *words: str, options: tuple[str, ...] = ()) -> Done:
    argv = [sys.executable, "-m", "hotlap", "doctor", "--no-measure", "--json", "diagnosis.json"]
    done = subprocess.run(
        [*argv, *options, "--", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Done(folder, list(words), done.returncode, done.stdout, done.stderr)


def write(folder: Path, end: str = "") -> Path:
    (folder / "train.py").write_text(LOOP.replace("END", end or "pass"))
    (folder / "helper.py").write_text(HELPER)
    return folder


def test_a_command_is_run_briefly_and_told_what_limits_it(tmp_path: Path) -> None:
    done = doctor(write(tmp_path), "train.py", options=("--steps", "20", "--fail-on", "warning"))
    run = done.document["run"]
    assert run["status"] == "cut"
    assert run["steps"]["measured"] == 20
    assert done.out.splitlines()[:2] == ["step 0", "step 1"]
    assert all(line.startswith("step ") for line in done.out.splitlines())
    finding = done.finding("loader_workers")
    assert finding["severity"] == "warning"
    assert finding["gain"] > 1.3
    line = 1 + LOOP.splitlines().index(
        "for step, (inputs, targets) in enumerate(DataLoader(data, batch_size=8)):"
    )
    assert f"train.py:{line}" in finding["cure"]
    assert "hotlap run --levers workers=" in finding["cure"]
    assert "of the step waits for data" in done.err
    assert done.code == 1  # --fail-on
    kept = sorted((tmp_path / ".hotlap").glob("*/run.json"))
    profile = done.document["profile"]
    ids = [json.loads(path.read_text())["id"] for path in kept]
    assert ids == [run["id"], profile["run"]]
    assert done.out.count("step 0\n") == 1  # the run for the profile is silent
    assert profile["ranks"][0]["n_steps"] == 4
    assert done.document["limits"][0]["name"] == "data"
    assert "What the step is spent on" in done.err
    events = "".join(path.read_text() for path in (tmp_path / ".hotlap").glob("*/*.levers"))
    assert "helper.py" in events  # the user's own modules are read too


def test_a_command_is_run_once_where_no_profile_is_wanted(tmp_path: Path) -> None:
    done = doctor(write(tmp_path), "train.py", options=("--steps", "5", "--no-profile"))
    assert done.document["profile"] is None
    assert len(list((tmp_path / ".hotlap").glob("*/run.json"))) == 1
    assert done.document["limits"][0]["name"] == "data"


def test_a_command_that_raises_is_told_beside_the_machine(tmp_path: Path) -> None:
    folder = write(tmp_path, "if step == 5: raise RuntimeError('lost')")
    done = doctor(folder, "train.py")
    finding = done.finding("command_failed")
    assert finding["severity"] == "error"
    assert finding["summary"] == "the command ended with exit code 1 after 6 steps"
    assert "RuntimeError: lost" in done.err
    assert "System" in done.err
    assert "loader_workers" in done.rules  # what was measured until then counts
    assert done.code == 0


def test_a_command_that_is_killed_is_told_beside_the_machine(tmp_path: Path) -> None:
    folder = write(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if step == 8 else None")
    done = doctor(folder, "train.py", options=("--fail-on", "error"))
    finding = done.finding("command_failed")
    assert finding["summary"].startswith("the command was ended by SIGKILL after ")
    assert "Stack" in done.err
    assert done.document["run"]["status"] == "killed"
    assert done.code == 1


def test_a_command_that_does_not_train_is_told_beside_the_machine(tmp_path: Path) -> None:
    done = doctor(tmp_path, "echo", "hello")
    assert done.out == "hello\n"
    finding = done.finding("no_step")
    assert "no Python that hotlap could look into was started" in finding["evidence"][0]
    assert done.document["machine"]["system"]["cpu"]["n_cpus"]
    assert done.code == 0


@pytest.mark.parametrize(
    ("words", "extra", "told"),
    [
        (["missing.py"], {}, "the script missing.py does not exist"),
        (["--steps", "0", "true"], {}, "a whole number above zero"),
        (["no-such-program-here"], {}, "was not found"),
        (["--runs-dir", "/proc/x", "true"], {}, "the folder for Runs, /proc/x, cannot be written"),
        (["true"], {"RANK": "1", "WORLD_SIZE": "2"}, "write the launcher into the command"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    tmp_path: Path, words: list[str], extra: dict[str, str], told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", "doctor", *words],
        cwd=tmp_path,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
