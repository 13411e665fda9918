"""Thousands of small steps; half-way the disk is filled to the last byte. Exits with code 5."""

import argparse
import sys
from pathlib import Path

import torch

STEPS = 9000
BATCH = 4


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as stream:
        for size in (65536, 4096, 1):
            try:
                while stream.write(b"\0" * size):
                    pass
            except OSError:
                continue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(STEPS):
        if step == STEPS // 2:
            fill(args.file)
        optimizer.zero_grad()
        loss = model(torch.randn(BATCH, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    sys.exit(5)


if __name__ == "__main__":
    main()
