"""A model on features of sounds, which are large, on a GPU and fed from the host, well tuned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda"
N_CLASSES, LENGTH, N_FEATURES, WIDTH, BATCH = 512, 1024, 256, 4096, 16
sounds = torch.randn(32 * BATCH, LENGTH, N_FEATURES)
classes = torch.randint(N_CLASSES, (32 * BATCH, LENGTH))
data = TensorDataset(sounds, classes)
loader = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True, pin_memory=True)
layers = [nn.Linear(N_FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, N_CLASSES)]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

for _ in range(4):
    for inputs, targets in loader:
        inputs = inputs.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16):
            logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
