"""A plain training script, as a newcomer writes it: a small CNN that tells drawn shapes apart.

It makes its own data, image by image, in Python, and loads it in the training process. It knows
nothing of hotlap; `hotlap time examples/train_plain.py` says where its step goes.
"""

import math
import random

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIZE = 32


class Shapes(Dataset):
    """Circles, squares and triangles of random size and place, drawn pixel by pixel."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draw = random.Random(self.seed + index)
        kind = draw.randrange(3)
        x0, y0, r = draw.uniform(10, 22), draw.uniform(10, 22), draw.uniform(5, 9)
        inside = (
            lambda x, y: math.hypot(x, y) < r,
            lambda x, y: max(abs(x), abs(y)) < r,
            lambda x, y: -r < y < r and abs(x) < (r - y) / 2,
        )[kind]
        rows = [[float(inside(x - x0, y - y0)) for x in range(SIZE)] for y in range(SIZE)]
        image = torch.tensor(rows).unsqueeze(0)
        return image + 0.3 * torch.randn(1, SIZE, SIZE), kind


def build_model() -> nn.Module:
    """Three convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(256, 3),
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
    train = DataLoader(Shapes(3072, seed=0), batch_size=64, shuffle=True)
    validation = DataLoader(Shapes(512, seed=1_000_000), batch_size=64)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
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
