"""A small multilayer perceptron as a newcomer trains it: the GPU waits for Python at every kernel.

Three linear layers, 784-256-256-10; the data are random and made once on the device.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

N_BATCHES = 64


def build_model() -> nn.Module:
    """Three linear layers."""
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def make_batches(batch: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Random inputs and labels."""
    return [
        (torch.randn(batch, 784, device=device), torch.randint(10, (batch,), device=device))
        for _ in range(N_BATCHES)
    ]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    batches = make_batches(arguments.batch, arguments.device)
    model = build_model().to(arguments.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for step in range(arguments.steps):
        inputs, labels = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % 10_000 == 9_999:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
