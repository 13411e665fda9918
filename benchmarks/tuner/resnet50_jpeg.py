"""ResNet-50 on JPEG files as a newcomer trains it: PIL, torchvision's transforms, no workers.

`make_jpegs.py` writes the files. They are taken in turn until an epoch has `--images` images, so
that a few thousand files make epochs as long as those of a real data set. `--tiny` takes a small
network of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms

N_CLASSES = 1000


class Photos(Dataset):
    """JPEG files of one folder; the class of each stands in its name, behind the last '_'."""

    def __init__(self, folder: Path, n_images: int, size: int) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        if not self.files:
            raise SystemExit(f"{folder} holds no .jpg files; make_jpegs.py writes some")
        self.n_images = n_images
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return self.n_images

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = self.files[index % len(self.files)]
        image = Image.open(file).convert("RGB")
        return self.transform(image), int(file.stem.rpartition("_")[2])


def build_model(tiny: bool) -> nn.Module:
    """torchvision's ResNet-50, or two convolutions."""
    if not tiny:
        return models.resnet50()
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, N_CLASSES),
    )  # fmt: skip


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder of make_jpegs.py")
    parser.add_argument("--images", type=int, default=128_000, help="images an epoch")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224, help="height and width after the crop")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small network of its own")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    dataset = Photos(arguments.data, arguments.images, arguments.size)
    loader = DataLoader(dataset, batch_size=arguments.batch, shuffle=True, num_workers=0)
    model = build_model(arguments.tiny).to(arguments.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    step = 0
    while step < arguments.steps:
        for images, labels in loader:
            images, labels = images.to(arguments.device), labels.to(arguments.device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
            if step == arguments.steps:
                break


if __name__ == "__main__":
    main()
