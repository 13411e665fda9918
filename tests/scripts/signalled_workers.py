"""A loader whose workers are sent what a scheduler sends to all processes; it is left open.

`signalled_workers.py METHOD [stuck]`: with `stuck`, the workers are in a long read at the end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

N = 24


class Numbers(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 11 and "stuck" in sys.argv:
            time.sleep(600)
        return torch.tensor(float(index))


def nap() -> None:
    time.sleep(600)


def family() -> list[int]:
    """The workers, and the fork server that may have started them."""
    workers = [child.pid for child in multiprocessing.active_children() if child.name != "other"]
    parents = {int(Path(f"/proc/{pid}/stat").read_text().split()[3]) for pid in workers if pid}
    return [pid for pid in (*workers, *parents - {os.getpid()}) if pid]


def main() -> None:
    method = sys.argv[1]
    # Any other child still ends when it is told to.
    other = multiprocessing.get_context(method).Process(target=nap, name="other", daemon=True)
    other.start()
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda got, frame: told.append(got))
    loader = DataLoader(
        Numbers(), num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    batches = iter(loader)
    total = float(next(batches).sum())
    for number in (signal.SIGTERM, signal.SIGUSR1):
        for pid in (*family(), os.getpid()):
            os.kill(pid, number)
        time.sleep(0.3)
        total += sum(float(next(batches).sum()) for _ in range(4))
    other.terminate()
    other.join(30)
    print(json.dumps({"total": total, "told": sorted(set(told)), "other": other.exitcode}))


if __name__ == "__main__":
    main()
