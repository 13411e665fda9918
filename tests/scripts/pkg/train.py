"""A module inside a package, run with `python -m`, which imports its siblings relatively."""

import json

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from .model import Autoencoder


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.rand(3840, 784)), batch_size=256, shuffle=True)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    steps = samples = 0
    for _ in range(2):
        for (images,) in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(images), images)
            loss.backward()
            optimizer.step()
            print("loss", loss.item().hex())
            steps += 1
            samples += len(images)
        scheduler.step()

    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
