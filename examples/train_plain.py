"""A plain training script, as a newcomer writes it: a small CNN that tells drawn shapes apart.

It has a newcomer's usual faults: a debugging aid left on, torch's slow default optimizer, data made
image by image in the training process. It knows nothing of hotlap; `hotlap time
examples/train_plain.py` says where its step goes, `hotlap tune` makes it faster.
"""

import random

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIZE = 32


class Shapes(Dataset):
    """Circles, squares and triangles of random size and place, with noise on them."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self.y, self.x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draw = random.Random(self.seed + index)
        kind = draw.randrange(3)
        x, y, r = self.x - draw.uniform(10, 22), self.y - draw.uniform(10, 22), draw.uniform(5, 9)
        if kind == 0:
            inside = x**2 + y**2 < r**2
        elif kind == 1:
            inside = torch.maximum(x.abs(), y.abs()) < r
        else:
            inside = (y.abs() < r) & (x.abs() < (r - y) / 2)
        return inside.float().unsqueeze(0) + 0.3 * torch.randn(1, SIZE, SIZE), kind


def build_model() -> nn.Module:
    """A convolution and wide linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 1024), nn.ReLU(),
        nn.Linear(1024, 3),
    )  # fmt: skip


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    """Share of a data set that the model gets right."""
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += int((model(images).argmax(1) == labels).sum())
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    """Train for three epochs, with a validation after each."""
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)  # left on since the last hunt for a NaN
    train = DataLoader(Shapes(3072, seed=0), batch_size=64, shuffle=True)
    validation = DataLoader(Shapes(512, seed=1_000_000), batch_size=64)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        for images, labels in train:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: validation accuracy {accuracy(model, validation):.3f}")


if __name__ == "__main__":
    main()
