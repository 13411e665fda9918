"""What the reference trainer does on a GPU alone: fp8, and steps that wait for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotlap.trainer.metrics import Metrics

RECIPE = """
[model]
name = "gpt"
n_layers = 4
n_heads = 16
width = 1024
vocab_size = 1024
context = 256

[data]
kind = "synthetic"
context = 256
n_samples = 64

[optimizer]
name = "adamw"
lr = 1e-4

[loop]
task = "text"
batch = 16
steps = 40
validate_every = 0

[output]
log_steps = 1
"""


def losses(folder: Path, *changes: str) -> list[float]:
    """Of every step of a training."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(RECIPE)
    done = subprocess.run(
        [sys.executable, "-m", "hotlap.trainer", "recipe.toml", *changes],
        cwd=folder,
        env={**os.environ, "HOTLAP_SKIP_FLOPS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def epochs(found: list[float]) -> list[float]:
    """The mean loss of each: its four batches are not equally hard."""
    return [sum(found[k : k + 4]) / 4 for k in range(0, len(found), 4)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("compiled", ["", "default"])
def test_a_gpt_learns_in_fp8_as_it_does_in_bf16(tmp_path: Path, compiled: str) -> None:
    expected = losses(tmp_path / "bf16", "precision=bf16", f"compile={compiled}")
    found = losses(tmp_path / "fp8", "precision=fp8", f"compile={compiled}")
    assert expected[-1] < expected[0] - 1
    assert found != expected
    assert epochs(found) == pytest.approx(epochs(expected), rel=0.02)


def test_a_loss_and_hits_are_kept_without_a_wait() -> None:
    device = torch.device("cuda")
    seen = Metrics(device)
    logits, targets = torch.randn(64, 10, device=device), torch.zeros(64, dtype=int, device=device)
    seen.add_accuracy(logits, targets)  # kernels are loaded at their first call, which waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 100):
            seen.add_loss(step, logits.sum(), 64)
            seen.add_accuracy(logits, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert seen.read().n == 64 * 99
