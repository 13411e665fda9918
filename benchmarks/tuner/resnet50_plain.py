"""ResNet-50 as a newcomer trains it: torch's defaults, fp32, NCHW, no tuning.

The data are random images that are made once on the device and taken in turn, so that the step is
the model's alone. `--tiny` is a small network of its own, for a machine without torchvision.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

N_CLASSES = 1000
N_BATCHES = 4


def build_model(tiny: bool = False) -> nn.Module:
    """torchvision's ResNet-50, or three convolutions."""
    if not tiny:
        import torchvision

        return torchvision.models.resnet50()
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, N_CLASSES),
    )  # fmt: skip


def make_batches(batch: int, size: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Random images and labels."""
    return [
        (
            torch.randn(batch, 3, size, size, device=device),
            torch.randint(N_CLASSES, (batch,), device=device),
        )
        for _ in range(N_BATCHES)
    ]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224, help="height and width of an image")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small network of its own")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    batches = make_batches(arguments.batch, arguments.size, arguments.device)
    model = build_model(arguments.tiny).to(arguments.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for step in range(arguments.steps):
        images, labels = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 500 == 499:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
