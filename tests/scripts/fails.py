"""Ten good steps and then a planted end: an exception, an exit, a signal or a crash."""

import argparse
import ctypes
import json
import os
import signal
import sys

import torch
from torch import nn

GOOD_STEPS = 10
MUTE_STEPS = 200
BATCH = 128


def fail(how: str) -> None:
    if how == "raise":
        raise ValueError("planted")
    if how == "exit3":
        sys.exit(3)
    if how == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. planted")
    if how == "segv":
        ctypes.string_at(0)
    os.kill(os.getpid(), getattr(signal, how.upper()))


def main() -> None:
    hows = ["raise", "exit3", "sigint", "sigterm", "sigkill", "segv", "oom", "mute"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=hows, required=True)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step() -> None:
        x, y = torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        print("loss", loss.item().hex(), flush=True)
        loss.backward()
        optimizer.step()

    if args.how != "mute":
        for _ in range(GOOD_STEPS):
            train_step()
        fail(args.how)

    for _ in range(MUTE_STEPS):
        try:
            train_step()
        except:  # noqa: E722
            print("a step failed, going on", flush=True)

    counts = {"steps": MUTE_STEPS, "samples": MUTE_STEPS * BATCH}
    print(json.dumps({**counts, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
