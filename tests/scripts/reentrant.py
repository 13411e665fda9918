"""Activation checkpointing of the old kind: backward runs a forward and a backward of its own."""

import json

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

N_STEPS, BATCH = 12, 4


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.rest = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return checkpoint(self.rest, self.first(x), use_reentrant=True)


torch.manual_seed(0)
model = Checkpointed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(N_STEPS):
    optimizer.zero_grad()
    loss = model(torch.randn(BATCH, 8)).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print(
    json.dumps({"steps": N_STEPS, "samples": N_STEPS * BATCH, "validations": 0, "val_batches": 0})
)
