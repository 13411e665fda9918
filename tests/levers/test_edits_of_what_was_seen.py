"""Edits whose line is seen while the script runs: made in it, they do what the lever does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lever_runs import BY_NAME, run_with

from hotlap.levers.common.edits import apply_edits, describe
from hotlap.levers.common.workload import Workload, workload_from

BLOCKS = """
import json
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(32, 32), nn.NORM(32), nn.Dropout(0.1)

    def forward(self, x):
        RUNS.append(1)
        return x + self.drop(torch.relu(self.norm(self.inner(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


RUNS = []
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(4):
    loss = model(torch.randn(8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "n_runs": len(RUNS)}))
"""
PROBABILITIES = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = nn.BCELoss()(model(torch.randn(8, 4)), torch.ones(8, 1))
    loss.backward()
    optimizer.step()
"""
ANOMALY = """
import json
import torch

is_debugging = True
torch.autograd.set_detect_anomaly(is_debugging, check_nan=False)  # since the last NaN
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    with CONTEXT:
        model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
print(json.dumps({"anomaly": torch.is_anomaly_enabled()}))
"""


def seen_in(folder: Path, script: Path) -> Workload:
    """What a run of the script without levers is seen to do."""
    _, events = run_with(folder, script)
    return workload_from(events, {}, 1, 1, ())


def edited(script: Path, lever: str, workload: Workload) -> Path:
    """The script with a lever's edit made in it, in a file beside it."""
    value = BY_NAME[lever].values(workload)[0]
    new = script.with_name("edited.py")
    new.write_text(apply_edits(BY_NAME[lever].edit(value, workload))[str(script)])
    return new


def told(lever: str, workload: Workload) -> list[str]:
    edits = BY_NAME[lever].edit(BY_NAME[lever].values(workload)[0], workload)
    return [describe(edit) for edit in edits]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_blocks_are_checkpointed_by_the_edit(tmp_path: Path, script: Path) -> None:
    script.write_text(BLOCKS.replace("NORM", "LayerNorm"))
    plain, _ = run_with(tmp_path / "plain", script)
    lever, _ = run_with(tmp_path / "lever", script, checkpointing="blocks")
    by_hand = edited(script, "checkpointing", seen_in(tmp_path / "seen", script))
    edit, _ = run_with(tmp_path / "edit", by_hand)
    assert plain.truth["n_runs"] == 12
    assert lever.truth["n_runs"] == edit.truth["n_runs"] == 24
    assert lever.truth["losses"] == edit.truth["losses"] == plain.truth["losses"]


def test_blocks_that_count_statistics_are_left_to_a_person(tmp_path: Path, script: Path) -> None:
    script.write_text(BLOCKS.replace("NORM", "BatchNorm1d"))
    workload = seen_in(tmp_path, script)
    line = 1 + script.read_text()[: script.read_text().index("loss = model(")].count("\n")
    (words,) = told("checkpointing", workload)
    assert words.startswith(f'{script}:{line}  checkpoint(block, x, use_reentrant=False) for "Blo')
    assert "count every batch twice" in words


def test_a_loss_of_probabilities_is_kept_out_of_autocast(tmp_path: Path, script: Path) -> None:
    script.write_text(PROBABILITIES)
    workload = replace(seen_in(tmp_path, script), device="cuda")
    assert told("bf16", workload) == [
        f'{script}:8  with torch.autocast("cuda", dtype=torch.bfloat16): around the model\'s call '
        "alone, and what it returns .float() for the loss"
    ]


def test_anomaly_detection_is_switched_off_where_it_is_switched_on(
    tmp_path: Path, script: Path
) -> None:
    script.write_text(ANOMALY.replace("CONTEXT", "torch.no_grad(), torch.enable_grad()"))
    workload = seen_in(tmp_path / "seen", script)
    assert told("debug_off", workload) == [f"{script}:6  set_detect_anomaly(False)"]
    by_hand = edited(script, "debug_off", workload)
    new = "torch.autograd.set_detect_anomaly(False, check_nan=False)  # since the last NaN"
    assert by_hand.read_text().splitlines()[5] == new
    edit, _ = run_with(tmp_path / "edit", by_hand)
    assert edit.truth["anomaly"] is False


def test_a_block_with_anomaly_detection_is_named_once(tmp_path: Path, script: Path) -> None:
    script.write_text(ANOMALY.replace("CONTEXT", "torch.autograd.detect_anomaly()"))
    assert told("debug_off", seen_in(tmp_path, script)) == [
        f"{script}:6  set_detect_anomaly(False)",
        f"{script}:10  leave torch.autograd.detect_anomaly() out here",
    ]
