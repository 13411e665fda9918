"""Convolutions on a GPU, well tuned."""

import torch
from torch import nn

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
device = "cuda"
BATCH, SIZE, WIDTH = 256, 64, 256


def block(n_in, n_out):
    return [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]


layers = [*block(64, WIDTH), *block(WIDTH, WIDTH), *block(WIDTH, WIDTH)]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 128))
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
images = torch.randn(BATCH, 64, SIZE, SIZE, device=device)
images = images.to(memory_format=torch.channels_last)
labels = torch.randint(128, (BATCH,), device=device)

for _ in range(400):
    with torch.autocast(device, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
