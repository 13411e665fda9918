"""Wide layers on a GPU, well tuned."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda"
BATCH, WIDTH, HIDDEN, N_CLASSES = 8192, 4096, 8192, 1024
layers = [nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(HIDDEN, N_CLASSES)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
inputs = torch.randn(BATCH, WIDTH, device=device)
targets = torch.randint(N_CLASSES, (BATCH,), device=device)

for _ in range(400):
    with torch.autocast(device, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
