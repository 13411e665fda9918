"""`hotlap tune --sweep batch` as a user runs it, up to the batch that does not fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOTLAP = [sys.executable, "-m", "hotlap"]
OWN_BATCHES = "images, labels = torch.randn(64, 512), torch.randint(10, (64,))"
LOADER = """
data = torch.utils.data.TensorDataset(torch.randn(8192, 512), torch.randint(10, (8192,)))
loader = torch.utils.data.DataLoader(data, batch_size=64)
"""
UNSEEN = "table = torch.randn(100, 512)\nimages, labels = table[:64], torch.arange(64) % 10"
TRAINING = """
import resource
import torch
from torch import nn

torch.manual_seed(0)
{data}
wide = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
model = nn.Sequential(nn.Linear(512, 2048), *wide, nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
{limit}
for epoch in range(100):
    for images, labels in {batches}:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LIMIT = """
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
"""


def project(folder: Path, data: str, limit: str = LIMIT) -> Path:
    batches = "loader" if "loader" in data else "[(images, labels)] * 10"
    (folder / "train.py").write_text(TRAINING.format(data=data, limit=limit, batches=batches))
    return folder


def sweep(folder: Path) -> tuple[list[dict[str, Any]], str]:
    words = [*HOTLAP, "tune", "--sweep", "batch", "--budget", "3", "--steps", "10"]
    done = subprocess.run(
        [*words, "--json", "sweep.json", "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    points: list[dict[str, Any]] = json.loads((folder / "sweep.json").read_text())
    return points, done.stderr


@pytest.mark.parametrize("data", [OWN_BATCHES, LOADER], ids=["own batches", "loader"])
def test_it_doubles_the_batch_until_memory_is_out(tmp_path: Path, data: str) -> None:
    points, text = sweep(project(tmp_path, data))
    *fitted, last = points
    assert [point["factor"] for point in points] == [2**i for i in range(len(points))]
    assert [point["samples_per_step"] for point in fitted] == [64 * p["factor"] for p in fitted]
    assert len(fitted) >= 2
    assert all(point["state"] == "ok" and point["samples_per_s"] > 0 for point in fitted)
    assert all(point["memory_bytes"] > 0 for point in fitted)
    assert (last["state"], last["samples_per_s"], last["memory_bytes"]) == ("oom", None, None)
    assert f"x{last['factor']}" in text
    assert "is the fastest of these" in text
    assert not list((tmp_path / ".hotlap").iterdir())


def test_a_script_whose_batches_are_not_seen_is_told_why(tmp_path: Path) -> None:
    points, text = sweep(project(tmp_path, UNSEEN))
    assert [point["state"] for point in points] == ["ok", "not applicable"]
    assert "where its batches are is not seen" in text


def test_a_command_that_fails_is_one_error_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('no data here')")
    words = [*HOTLAP, "tune", "--sweep", "batch", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "the command itself does not run" in done.stderr
    assert "no data here" in done.stderr


def test_interrupted_it_keeps_what_there_is(tmp_path: Path) -> None:
    project(tmp_path, OWN_BATCHES, limit="")
    words = [*HOTLAP, "tune", "--sweep", "batch", "--steps", "10", "--json", "s.json", "train.py"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("x1" in line for line in iter(process.stderr.readline, "")), "it ended before that"
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in text
    assert text.endswith("hotlap: interrupted; what was measured is above\n")
    points = json.loads((tmp_path / "s.json").read_text())
    assert points[0]["samples_per_s"] > 0
