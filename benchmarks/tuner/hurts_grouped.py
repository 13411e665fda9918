"""A network of depthwise and grouped convolutions, for which half precision can be slow.

Autocast has been seen to make such networks several times slower. A tuner that measures must not
keep what hurts here. The data are random images that are made once on the device.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

N_CLASSES = 100
N_BATCHES = 4


class Block(nn.Module):
    """A depthwise convolution, then a grouped one, with a residual."""

    def __init__(self, width: int, n_groups: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.grouped = nn.Conv2d(width, width, 3, padding=1, groups=n_groups, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        y = self.norm1(self.depthwise(x)).relu()
        return (x + self.norm2(self.grouped(y))).relu()


def build_model(width: int, n_blocks: int) -> nn.Module:
    """A stem, the blocks in two resolutions, and a linear layer."""
    half = n_blocks // 2
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=4),
        *(Block(width, width // 4) for _ in range(half)),
        nn.Conv2d(width, 2 * width, 2, stride=2, groups=width),
        *(Block(2 * width, width // 4) for _ in range(n_blocks - half)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, N_CLASSES),
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=192, help="height and width of an image")
    parser.add_argument("--width", type=int, default=128, help="channels, a multiple of 4")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    shape = (arguments.batch, 3, arguments.size, arguments.size)
    batches = [
        (
            torch.randn(shape, device=arguments.device),
            torch.randint(N_CLASSES, shape[:1], device=arguments.device),
        )
        for _ in range(N_BATCHES)
    ]
    model = build_model(arguments.width, arguments.blocks).to(arguments.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
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
