"""Logistic regression written out on raw tensors: no module, no loss function from torch."""

import json

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

features = torch.randn(3200, 1024)
labels = (features @ torch.randn(1024) > 0).float()
loader = DataLoader(TensorDataset(features, labels), batch_size=160, shuffle=True)

w1 = (torch.randn(1024, 1024) / 32).requires_grad_()
b1 = torch.zeros(1024, requires_grad=True)
w2 = (torch.randn(1024) / 32).requires_grad_()
optimizer = torch.optim.SGD([w1, b1, w2], lr=0.1)

steps = samples = 0
for _ in range(2):
    for x, y in loader:
        hidden = torch.relu(x @ w1 + b1)
        p = torch.sigmoid(hidden @ w2).clamp(1e-6, 1 - 1e-6)
        loss = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item().hex())
        steps += 1
        samples += len(x)

print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))
