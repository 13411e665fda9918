"""Plain training loop at the top level of a script, over batches held in memory."""

import json

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(
    nn.Linear(784, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = [(torch.randn(256, 784), torch.randint(0, 10, (256,))) for _ in range(10)]

steps = samples = 0
for _ in range(4):
    for x, y in batches:
        optimizer.zero_grad()
        output = model(x)
        loss = criterion(output, y)
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
        steps += 1
        samples += len(x)

print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))
