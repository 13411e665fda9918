"""LBFGS with a closure, which evaluates the full batch several times in each step."""

import json

import torch
from torch import Tensor, nn

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(4096, 64)
y = (x @ torch.randn(64, 1)).sin()
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)


def closure() -> Tensor:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    print("loss", loss.item().hex())
    loss.backward()
    return loss


steps = samples = 0
for _ in range(8):
    optimizer.step(closure)
    steps += 1
    samples += len(x)

print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))
