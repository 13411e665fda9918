"""`hotlap tune` with its options, on trainings for which it is known what comes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import hotlap, ladder_of, work

from hotlap.levers.common.edits import unified_diff
from hotlap.tuner.guard import Claim, Reference, judge
from hotlap.tuner.tune import TuneRequest, Tuning, Watcher

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_plain.py"
DEEP = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.relu = nn.Parameter(torch.ones(1024)), nn.ReLU()

    def forward(self, x):
        wide = self.relu(x.repeat(1, 16) * self.scale)
        return x + wide.view(-1, 16, 64).mean(dim=1)

model = nn.Sequential(nn.Linear(16, 64), *[Block() for _ in range(12)], nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 16), torch.randint(4, (512,))
for step in range(80):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""Twelve blocks keep 4 MB of activations each, where those of one at a time are enough."""


def test_batch_is_another_name_for_the_lever_that_is_allowed(tmp_path: Path) -> None:
    folder = work(tmp_path, "0")
    script = folder / "train.py"
    # So short that four times the batch leaves too few steps: no time goes into finding the best.
    script.write_text(script.read_text().replace("range(2)", "range(1)"))
    options = ("--allow", "batch", "--only", "batch_size", "--json", "ladder.json")
    done = hotlap(folder, "tune", "--budget", "1", "--steps", "32", *options, "train.py")
    assert done.returncode == 0, done.stderr
    first = ladder_of(folder)["rungs"][0]
    assert (first["lever"], first["value"], first["state"]) == ("batch_size", "x2", "ok")
    assert first["loss_verdict"]


def test_checkpointing_is_kept_where_memory_is_to_be_bettered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is freed goes back to the system at once, so that the peak is that of the tensors.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    (tmp_path / "train.py").write_text(DEEP)
    options = ("--objective", "memory", "--only", "checkpointing", "--json", "ladder.json")
    done = hotlap(tmp_path, "tune", "--budget", "2", "--steps", "20", *options, "train.py")
    assert done.returncode == 0, done.stderr
    ladder = ladder_of(tmp_path)
    assert ladder["levers"] == {"checkpointing": "blocks"}
    assert ladder["best"]["memory_bytes"] < ladder["baseline"]["memory_bytes"]
    (rung,) = [one for one in ladder["rungs"] if one["kept"]]
    assert rung["loss_verdict"].startswith("bit for bit")
    assert f"{ladder['ratio']:.2f}x smaller" in done.stderr


def test_the_levers_of_the_demo_take_effect_in_its_example_and_have_their_edits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the climb: what a lever brings on a busy machine is not to be relied on."""
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    request = TuneRequest((EXAMPLE.name,), tmp_path / ".hotlap", tmp_path / "x.toml", steps=20)
    tuning = Tuning(request, Watcher())
    levers = {"debug_off": "on", "fused_optimizer": "on"}
    with tuning.scratch() as folder:
        bench = tuning.bench(folder, None)
        baseline = bench.measure({})
        tuning.learn(baseline)
        trial = bench.measure(levers)
        edits = [edit for by_lever in tuning.edits(levers) for edit in by_lever]
    assert (baseline.state, trial.state) == ("ok", "ok")
    assert trial.done.keys() == levers.keys()
    order = tuning._order({}, baseline)
    assert levers.keys() <= {one.lever.name for one in order if not one.not_tried}
    claim = Claim.of([one for one in tuning.levers if one.name in levers])
    assert judge(Reference([baseline]), trial, claim).same
    diff = unified_diff(edits)
    assert "+    torch.autograd.set_detect_anomaly(False)" in diff
    assert "+    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)" in diff
