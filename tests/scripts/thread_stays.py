"""A training beside a thread that is no daemon and never ends."""

import threading
import time

import torch
from torch import nn


def stay() -> None:
    while True:
        time.sleep(1)


threading.Thread(target=stay).start()
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
