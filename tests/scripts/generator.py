"""Batches come from a plain Python generator function that works on the CPU for each of them."""

import json
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

STEPS = 40
BATCH = 128


def preprocess(seconds: float) -> None:
    """Stand-in for decoding and augmentation: keeps the core busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        preprocess(0.003)
        x = torch.randn(BATCH, 512)
        yield x, x[:, :1].sin()


torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU())
head = nn.Linear(1024, 1)
opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=3e-4)

steps = samples = 0
for x, y in batches(STEPS):
    loss = (head(net(x)) - y).pow(2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"loss {loss.item().hex()}")
    steps += 1
    samples += x.shape[0]

print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))
