"""Batches come from a plain Python generator function that works on the CPU for each of them.

With --validate, those of a validation after every tenth step come from a DataLoader.
"""

import json
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

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

steps = samples = validations = val_batches = 0
held_out = DataLoader(torch.randn(96, 512), batch_size=32)
for x, y in batches(STEPS):
    loss = (head(net(x)) - y).pow(2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"loss {loss.item().hex()}")
    steps += 1
    samples += x.shape[0]
    if "--validate" in sys.argv and steps % 10 == 0:
        net.eval()
        with torch.no_grad():
            for inputs in held_out:
                head(net(inputs))
                val_batches += 1
        net.train()
        validations += 1

counts = {"validations": validations, "val_batches": val_batches}
print(json.dumps({"steps": steps, "samples": samples, **counts}))
