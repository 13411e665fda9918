"""A script that leans on its surroundings: arguments, stdin, stderr, sys.path, working folder."""

import json
import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from helpers_awkward import make_batch, make_model

STEPS = 30


def main() -> None:
    print("argv", sys.argv)
    print("name", __name__)
    print("cwd", os.path.basename(os.getcwd()))
    print("path", os.path.basename(sys.path[0]))
    for _ in range(2):
        print("stdin", sys.stdin.readline().rstrip("\n"))
    print("training starts", file=sys.stderr)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = samples = 0
    for _ in range(STEPS):
        x, y = make_batch()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
        steps += 1
        samples += len(x)

    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
        os.chdir(home)
