"""Trains until a file appears; counts the signals that it is told to catch."""

import argparse
import json
import signal
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--catch", nargs="*", default=[], metavar="SIGNAL")
    args = parser.parse_args()

    counts: Counter[str] = Counter()
    for name in args.catch:
        signal.signal(signal.Signals[name], lambda n, _: counts.update([signal.Signals(n).name]))
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    while not args.file.exists():
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps == 10:
            print("ready", flush=True)
        time.sleep(0.002)
    print(json.dumps({"steps": steps, "signals": counts}), flush=True)


if __name__ == "__main__":
    main()
