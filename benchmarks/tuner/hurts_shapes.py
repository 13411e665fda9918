"""A network whose input has another shape at every step, for which compiling and caching hurt.

It reads lines of text of changing width: convolutions, then a transformer over the columns. Its
positions come from a Python loop over the columns, so that a compiler has to start again for each
width; cuDNN's benchmark and CUDA graphs start again for each shape as well. A tuner that measures
must not keep what hurts here. The data are cut from one random image on the device.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import Tensor, nn

N_CLASSES = 50
HEIGHT = 32


class Reader(nn.Module):
    """Convolutions, a transformer encoder over the columns, and the class of the line."""

    def __init__(self, width: int, n_layers: int) -> None:
        super().__init__()
        self.width = width
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, width, (HEIGHT // 4, 1)), nn.ReLU(),
        )  # fmt: skip
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers)
        self.head = nn.Linear(width, N_CLASSES)

    def positions(self, n_columns: int) -> Tensor:
        """A wave of another length in each channel."""
        rates = 10_000 ** (-torch.arange(self.width) / self.width)
        places = torch.tensor([[float(i)] for i in range(n_columns)])
        return torch.sin(places * rates)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each line."""
        columns = self.convolutions(images).squeeze(2).transpose(1, 2)
        columns = columns + self.positions(columns.shape[1]).to(columns.device)
        return self.head(self.encoder(columns).mean(1))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128, help="channels, a multiple of 4")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--shortest", type=int, default=64, help="pixels of the shortest line")
    parser.add_argument("--longest", type=int, default=512, help="pixels of the longest line")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    draw = random.Random(0)
    n = arguments.batch
    lines = torch.randn(n, 1, HEIGHT, arguments.longest, device=arguments.device)
    labels = torch.randint(N_CLASSES, (n,), device=arguments.device)
    model = Reader(arguments.width, arguments.layers).to(arguments.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.CrossEntropyLoss()
    for step in range(arguments.steps):
        n_pixels = draw.randint(arguments.shortest, arguments.longest)
        images = lines[..., :n_pixels].contiguous()
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 500 == 499:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
