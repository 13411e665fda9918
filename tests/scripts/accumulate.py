"""Gradient accumulation by hand: four micro-batches for each update."""

import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION_STEPS = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 512), torch.randint(0, 10, (3840,)))
    loader = DataLoader(dataset, batch_size=48, shuffle=True)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
    model.append(nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    steps = samples = 0
    optimizer.zero_grad()
    for _ in range(2):
        for i, (inputs, labels) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), labels) / ACCUMULATION_STEPS
            loss.backward()
            print("loss", loss.item().hex())
            samples += len(inputs)
            if (i + 1) % ACCUMULATION_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1

    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
