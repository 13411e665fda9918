"""Meta-learning with torch.func: gradients inside of a vmap, around which the loss is taken."""

import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1))
weights = dict(model.named_parameters())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(functional_call(model, weights, (x,)), y)


def loss_after_learning(x: Tensor, y: Tensor) -> Tensor:
    """Of one task, whose first half is to learn from."""
    gradients = grad(loss_of)(weights, x[:10], y[:10])
    learnt = {name: weights[name] - 0.05 * gradients[name] for name in weights}
    return loss_of(learnt, x[10:], y[10:])


steps = 0
for _ in range(40):
    x = torch.rand(32, 20, 1) * 10 - 5
    loss = vmap(loss_after_learning)(x, torch.sin(x + torch.rand(32, 1, 1))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    steps += 1

print(json.dumps({"steps": steps, "samples": None, "validations": 0, "val_batches": 0}))
