"""The chronometer on a real GPU: planted device time, losses, graphs, memory, power, FLOPs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
SRC = Path(__file__).parents[2] / "src"


def hotlap(tmp_path: Path, *words: str, options: tuple[str, ...] = ()) -> tuple[Any, str, Any]:
    """Run `hotlap time`; the Run, the command's stdout and the finished process."""
    result = tmp_path / "run.json"
    process = subprocess.run(
        [sys.executable, "-m", "hotlap", "time", "--runs-dir", str(tmp_path / "runs"),
         "--json", str(result), *options, *words],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=280,
    )  # fmt: skip
    print(process.stderr[-3000:])
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(result.read_text()), process.stdout, process


def rank_steps(tmp_path: Path, run: Any) -> Any:
    """The per-step table of the only rank."""
    (path,) = (tmp_path / "runs" / run["id"]).glob("rank-*.json")
    return json.loads(path.read_text())["steps"]


def test_planted_device_time_is_found_in_every_phase(tmp_path: Path) -> None:
    run, stdout, _ = hotlap(tmp_path, str(SCRIPTS / "planted_cuda.py"))
    planted = json.loads(stdout.splitlines()[-1])["planted"]
    steps = rank_steps(tmp_path, run)
    skip = 5
    for phase, truth in planted.items():
        known = [i for i, ns in enumerate(steps[f"{phase}_ns"]) if ns is not None and i >= skip]
        mean_got = sum(steps[f"{phase}_ns"][i] / 1e9 for i in known) / len(known)
        # What a loop does after its step belongs to the next one.
        shift = 1 if phase == "other" else 0
        mean_truth = sum(truth[i - shift] for i in known) / len(known)
        print(f"{phase:<10} found {mean_got * 1e3:.3f} ms, planted {mean_truth * 1e3:.3f} ms")
        assert mean_got == pytest.approx(mean_truth, rel=0.03, abs=3e-4), phase
    assert sum(run["phases_s"].values()) == pytest.approx(run["step_s"]["mean"], rel=0.01)


@pytest.mark.parametrize("style", ["plain", "scaler", "compile", "graphs"])
def test_losses_on_the_device_are_kept_bit_for_bit(tmp_path: Path, style: str) -> None:
    run, stdout, _ = hotlap(tmp_path, str(SCRIPTS / "losses_cuda.py"), "--style", style)
    printed = [float.fromhex(text) for text in json.loads(stdout.splitlines()[0])]
    assert run["loss"] == printed
    assert len(run["loss"]) == 150


def test_a_script_that_captures_a_cuda_graph_is_not_disturbed(tmp_path: Path) -> None:
    alone = subprocess.run(
        [sys.executable, str(SCRIPTS / "losses_cuda.py"), "--style", "manual"],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    _, stdout, _ = hotlap(tmp_path, str(SCRIPTS / "losses_cuda.py"), "--style", "manual")
    assert stdout.splitlines()[0] == alone.stdout.splitlines()[0]


def test_peak_memory_is_the_allocators(tmp_path: Path) -> None:
    run, stdout, _ = hotlap(tmp_path, str(SCRIPTS / "losses_cuda.py"))
    peak = json.loads(stdout.splitlines()[-1])["peak"]
    assert run["memory"]["device_peak_bytes"] == pytest.approx(peak, rel=0.01)
    assert run["memory"]["device_reserved_bytes"] >= peak


def test_resnet50_has_its_flops_mfu_power_and_energy(tmp_path: Path) -> None:
    run, _, _ = hotlap(tmp_path, str(SCRIPTS / "resnet50_cuda.py"))
    assert run["flops"]["per_step"] == pytest.approx(128 * 24.3e9, rel=0.02)
    assert 0.02 < run["flops"]["mfu"] < 0.9
    assert 100 < run["power"]["mean_w"] <= run["power"]["peak_w"] * 1.05 < 800
    energy = run["power"]["energy_j"]
    window = run["step_s"]["mean"] * run["steps"]["measured"]
    assert energy == pytest.approx(run["power"]["mean_w"] * window, rel=0.1)
    assert run["power"]["samples_per_j"] == pytest.approx(
        128 * run["steps"]["measured"] / energy, rel=0.01
    )


def test_a_killed_training_keeps_the_steps_it_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hotlap", "time", "--quiet", "--runs-dir", str(tmp_path),
               str(SCRIPTS / "losses_cuda.py"), "--steps", "200000"]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SRC)})
    deadline = time.monotonic() + 120
    tape = None
    while tape is None and time.monotonic() < deadline:
        tape = next(tmp_path.glob("*/*.tape"), None)
        time.sleep(0.2)
    assert tape is not None
    time.sleep(3)
    os.kill(int(tape.stem.rpartition("-")[2]), signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
    (path,) = tmp_path.glob("*/run.json")
    run = json.loads(path.read_text())
    assert run["status"] == "killed"
    assert run["steps"]["measured"] > 100
    assert all(isinstance(loss, float) for loss in run["loss"][:100])
