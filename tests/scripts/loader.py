"""DataLoader over a Dataset class, with or without worker processes, and a partial last batch."""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Blurry random pictures, each made when it is asked for."""

    def __init__(self, size: int) -> None:
        self.labels = torch.randint(0, 10, (size,))
        self.prototypes = torch.randn(10, 1, 28, 28)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        label = self.labels[index]
        noise = torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(index))
        return self.prototypes[label] + noise, label


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", choices=["fork", "spawn"], default="fork")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Digits(1000),
        batch_size=64,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start if args.workers else None,
    )
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    steps = samples = 0
    for _ in range(args.epochs):
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            print("loss", loss.item().hex())
            steps += 1
            samples += len(data)

    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
