"""A plain training with validation, well tuned for its size."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cpu"
data = TensorDataset(torch.randn(1024, 64), torch.randint(8, (1024,)))
held_out = TensorDataset(torch.randn(256, 64), torch.randint(8, (256,)))
loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
validation = DataLoader(held_out, batch_size=128)
layers = [nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.1)]
model = nn.Sequential(*layers, nn.Linear(1024, 8)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)


def validate():
    model.eval()
    n_right = 0
    with torch.inference_mode():
        for inputs, targets in validation:
            n_right += (model(inputs.to(device)).argmax(1) == targets.to(device)).sum()
    model.train()
    return n_right


for epoch in range(20):
    total = torch.zeros((), device=device)
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print("epoch", epoch, float(total), int(validate()))
