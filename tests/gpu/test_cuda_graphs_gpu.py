"""CUDA graphs of real models: the same losses to the last bit, and what cannot be recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

N_STEPS = 40


class Perceptron(nn.Sequential):
    def __init__(self):
        middle = (nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        super().__init__(nn.Linear(64, 128), *middle, nn.Linear(128, 10))


class Convolutions(nn.Sequential):
    def __init__(self):
        blocks = [
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            for _ in range(4)
        ]
        start = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1))
        super().__init__(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class Attention(nn.Module):
    dropout = 0.0

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=self.dropout, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layers(x.view(-1, 8, 8).repeat(1, 1, 8)).mean(1))


class Dropped(Attention):
    dropout = 0.1


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.layers(x.view(-1, 8, 8))[0][:, -1])


class Asking(Perceptron):
    def forward(self, x):
        y = super().forward(F.dropout(x, 0.1, self.training))
        return y if y.sum().item() > -1e30 else y * 2


class Checkpointed(Perceptron):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def train(kind, how):
    torch.manual_seed(0)
    model = kind().cuda()
    kept.append(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=how == "fp16")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(how)
    data = torch.randn(13, 32, 64, device="cuda")
    labels = torch.randint(10, (13, 32), device="cuda")
    losses = []
    for step in range(N_STEPS):
        n = 20 if step % 13 == 12 else 32
        x, y = data[step % 13][:n], labels[step % 13][:n]
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                losses.append(F.cross_entropy(model(data[0]), labels[0]).item())
            model.train()
    return losses


kept = []
torch.backends.cudnn.deterministic = True
for name, how in CASES:
    print(json.dumps([name, how, train(globals()[name], how)]), flush=True)
"""
EXACT = [
    ("Perceptron", ""),
    ("Perceptron", "bf16"),
    ("Perceptron", "fp16"),
    ("Convolutions", ""),
    ("Convolutions", "bf16"),
    ("Attention", ""),
    ("Attention", "bf16"),
]
WITH_DROPOUT = [("Dropped", ""), ("Dropped", "bf16")]
LEFT_ALONE = [("Asking", ""), ("Checkpointed", ""), ("Recurrent", ""), ("Dropped", "fp16")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses by model and precision, without and with the lever; what the lever told."""
    folder = tmp_path_factory.mktemp("graphs")
    cases = [*EXACT, *WITH_DROPOUT, *LEFT_ALONE]
    (folder / "train.py").write_text(f"CASES = {cases!r}\n{SCRIPT}")
    lever = ("-m", "hotlap", "run", "--levers", "cuda_graphs=on")
    found = []
    for words in (("train.py",), (*lever, "train.py")):
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("[")]
        assert len(lines) == len(cases)
        found.append({(name, how): losses for name, how, losses in lines})
    events = [
        json.loads(line)
        for path in Path(folder).rglob("*.levers")
        for line in path.read_text().splitlines()
    ]
    return *found, events


@pytest.mark.parametrize("case", EXACT, ids=" ".join)
def test_every_loss_is_the_same_to_the_last_bit(results: Any, case: tuple[str, str]) -> None:
    plain, changed, _ = results
    assert changed[case] == plain[case]


def test_what_can_be_recorded_is(results: Any) -> None:
    done = [event["what"] for event in results[2] if event.get("done") == "cuda_graphs"]
    for name, _ in (*EXACT, *WITH_DROPOUT):
        assert f"{name} is replayed, forward and backward" in done


@pytest.mark.parametrize("case", WITH_DROPOUT, ids=" ".join)
def test_dropout_draws_other_masks_in_each_step(results: Any, case: tuple[str, str]) -> None:
    plain, changed, _ = results
    assert changed[case][:3] == plain[case][:3]
    assert changed[case][-1] == pytest.approx(plain[case][-1], rel=0.3)


@pytest.mark.parametrize("case", LEFT_ALONE[:3], ids=" ".join)
def test_what_cannot_be_recorded_trains_as_it_did(results: Any, case: tuple[str, str]) -> None:
    """The generator of random numbers included, which a recording that fails had begun to use."""
    plain, changed, events = results
    assert changed[case] == plain[case]
    assert any(event.get("failed") == "cuda_graphs" for event in events)
