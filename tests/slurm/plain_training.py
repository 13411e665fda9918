"""A plain training with workers and a checkpoint of its own, that knows nothing of hotlap.

`plain_training.py FILE N`: N steps, from FILE on, slowly the first time. Asked to leave, it makes
some more with batches that its workers have yet to make, writes FILE and leaves. Its last line is
its last loss.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

BATCH = 4
N_MORE = 6
told: list[int] = []


class Squares(Dataset):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.rand(4, generator=torch.Generator().manual_seed(index))
        return x, x.square().sum()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda got, frame: told.append(got))
    file = Path(sys.argv[1] + os.environ.get("SLURM_ARRAY_TASK_ID", ""))
    n_steps = int(sys.argv[2])
    is_slow = "SLURM_JOB_ID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    step = 0
    if file.exists():
        step, weights, moments = torch.load(file)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    print(f"from {step}", flush=True)
    rest = Subset(Squares(n_steps * BATCH), range(step * BATCH, n_steps * BATCH))
    # Few ahead, so that what is asked for after the signal is made after it; and left open.
    loader = DataLoader(rest, BATCH, num_workers=2, prefetch_factor=1, persistent_workers=True)
    n_more = N_MORE
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step {step}", flush=True)
        time.sleep(0.5 if is_slow else 0)
        n_more -= bool(told)
        if not n_more:
            break
    if step < n_steps:
        torch.save((step, model.state_dict(), optimizer.state_dict()), file)
        print(f"left at {step} by {told}", flush=True)
        sys.exit(9)
    print(f"loss {loss.item().hex()}", flush=True)


if __name__ == "__main__":
    main()
