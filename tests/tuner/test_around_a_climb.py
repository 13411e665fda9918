"""What goes wrong around a climb: impatient users, odd folders, files that change meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotlap.errors import UsageError
from hotlap.levers.common.workload import Workload
from hotlap.tuner.scratch import Scratch
from hotlap.tuner.settings import SettingsFile, read_settings, write_settings
from hotlap.tuner.trial import TrialPlan, TrialRequest, _ending, run_trial
from hotlap.tuner.tune import TuneRequest, Tuning, Watcher

SCRIPT = """
import os, signal, time
import torch
from torch import nn

START
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(4, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HOTLAP = (sys.executable, "-m", "hotlap")


def write(folder: Path, start: str = "") -> None:
    (folder / "train.py").write_text(SCRIPT.replace("START", start))


def tuning(folder: Path, notes: list[str] | None = None, **fields: object) -> Tuning:
    request = TuneRequest(("train.py",), folder / ".hotlap", folder / "hotlap.toml", **fields)  # type: ignore[arg-type]
    return Tuning(request, Watcher(note=(notes if notes is not None else []).append))


def test_modules_of_the_users_do_not_take_the_place_of_pythons_own(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "statistics.py").write_text("MINE = True")
    plan = TrialPlan(("train.py",), tmp_path, tmp_path / "runs", ())
    one = run_trial(plan, TrialRequest({}, 30, 5, 60), Workload())
    assert (one.state, one.last_lines) == ("ok", ())


def test_a_baseline_that_fails_the_second_time_is_not_remembered(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, f"assert not os.path.exists({str(seen)!r})\nopen({str(seen)!r}, 'w').close()")
    words = (*HOTLAP, "tune", "--budget", "2", "--steps", "18", "train.py")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert "AssertionError" in done.stderr
    assert list((folder / ".hotlap").glob("tune-*")) == []


def test_pressed_twice_ctrl_c_still_ends_all_that_was_started(tmp_path: Path) -> None:
    """The training hears neither of them, nor SIGTERM."""
    ready = tmp_path / "ready"
    deaf = "for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)"
    write(tmp_path, f"{deaf}\nopen({str(ready)!r}, 'w').close()\ntime.sleep(600)")
    mark = f"BAD_DAY={tmp_path}"
    env = dict([mark.split("=", 1)], **os.environ)
    words = (*HOTLAP, "tune", "--budget", "5", "train.py")
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not ready.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
    assert process.wait(120) == 130
    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in environment(pid)] == []


def environment(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def test_settings_that_somebody_edited_meanwhile_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    output, notes = tmp_path / "hotlap.toml", list[str]()
    tuning(tmp_path, notes)._write_settings({"workers": "2"})
    tuning(tmp_path, notes)._write_settings({"workers": "4"})  # the same climb, resumed
    assert notes == []
    output.write_text('[levers]\nworkers = "7"\n')
    tuning(tmp_path, notes)._write_settings({"workers": "8"})
    assert read_settings(output).levers == {"workers": "8"}
    assert read_settings(tmp_path / "hotlap.toml.old").levers == {"workers": "7"}
    assert len(notes) == 1


def test_a_sweep_leaves_an_interrupted_climb_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    words = (*HOTLAP, "tune", "--sweep", "batch", "--steps", "10", "--json", "s.json", "train.py")
    left = tuning(tmp_path, steps=10)._state_folder / "runs" / "of-a-trial"
    left.mkdir(parents=True)
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    assert json.loads((tmp_path / "s.json").read_text())
    assert left.exists()
    assert [one.name for one in (tmp_path / ".hotlap").iterdir()] == [left.parents[1].name]


def test_a_lever_that_is_to_be_skipped_is_not_brought_in_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    one = tuning(tmp_path)
    limit = next(lever for lever in one.levers if lever.name == "gc_pauses")
    assert one._needed_value(limit) is not None
    assert tuning(tmp_path, skipped=("gc_pauses",))._needed_value(limit) is None
    maths = next(lever for lever in one.levers if lever.name == "pure_bf16")
    assert one._needed_value(maths) is None


def test_names_of_any_kind_are_written_so_that_they_can_be_read(tmp_path: Path) -> None:
    levers = {"my.lever": "on", 'a "quoted" one': "2", "plain_1": "x"}
    write_settings(tmp_path / "hotlap.toml", SettingsFile(levers), "a comment")
    assert read_settings(tmp_path / "hotlap.toml").levers == levers


def test_names_that_are_no_text_do_not_stop_a_climb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    odd = os.fsdecode(b"caf\xe9.txt")
    request = TuneRequest(("train.py", odd), tmp_path / ".hotlap", tmp_path / "hotlap.toml")
    assert Tuning(request, Watcher())._state_folder.name.startswith("tune-")


def test_a_signal_without_a_name_has_a_number() -> None:
    assert (_ending(-9), _ending(-35), _ending(3)) == ("signal SIGKILL", "signal 35", "exit code 3")


def test_checkpoints_count_as_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotlap.tuner.scratch.MAX_COPIED_BYTES", 100)
    monkeypatch.setattr("hotlap.tuner.scratch.MAX_TOTAL_BYTES", 500)
    for i in range(6):
        (tmp_path / f"{i}.pt").write_bytes(b"x" * 150)
    with pytest.raises(UsageError, match="holds too much for a copy of it"), Scratch(tmp_path):
        pass


def test_a_copy_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "data.bin").write_bytes(b"x")
    monkeypatch.setattr("hotlap.tuner.scratch.shutil.copy2", full)
    with pytest.raises(UsageError, match="No space left on device; --scratch DIR"):
        Scratch(tmp_path).__enter__()
