"""Trains again and again and kills it at random points, until it was killed often enough.

    kill_many_times.py N RECIPE key=value …

Every training gets a folder `training-<number>` and is started until it ends by itself. Torch is
imported once, and each start is a fork of this process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import torch.distributed.checkpoint.state_dict  # noqa: F401, imported before the forks

import hotlap.trainer.build
import hotlap.trainer.loop  # noqa: F401
from hotlap.trainer.__main__ import main

LONGEST_S = 1.5


def start(folder: str, words: list[str]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(main([*words, f"output.folder={folder}/training"]))
    return child


def ended_by_itself(child: int, after_s: float) -> bool:
    """Kill it after a while; whether it had come to its end before."""
    deadline = time.monotonic() + after_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0, status
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def run(n_kills: int, words: list[str]) -> None:
    draw, n, number = random.Random(0), 0, 0
    while n < n_kills:
        number += 1
        while not ended_by_itself(start(f"training-{number}", words), draw.uniform(0.0, LONGEST_S)):
            n += 1


run(int(sys.argv[1]), sys.argv[2:])
