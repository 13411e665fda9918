"""A language model in small: the loss has far more numbers than the model's layers."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(40_000, 16), nn.Linear(16, 40_000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
tokens = torch.randint(40_000, (128, 2))
for _ in range(8):
    optimizer.zero_grad()
    logits = model(tokens[:, 0])
    loss = F.cross_entropy(logits, tokens[:, 1], label_smoothing=0.1)
    (loss / 2).backward()
    optimizer.step()
