"""A small training and the commands of the tuner on it, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TRAINING = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, i):
        time.sleep(DELAY)
        made = torch.Generator().manual_seed(i)
        return torch.randn(8, generator=made), i % 4

def main():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=8, shuffle=True)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.save(model.state_dict(), "model.pt")

main()
"""


def hotlap(folder: Path, *words: str, **fields: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotlap", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **fields,
    )


def work(tmp_path: Path, delay: str) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING.replace("DELAY", delay))
    (folder / "model.pt").write_bytes(b"weights of the user's own")
    return folder


def ladder_of(folder: Path) -> dict[str, Any]:
    ladder: dict[str, Any] = json.loads((folder / "ladder.json").read_text())
    return ladder
