"""A plain command with a checkpoint of its own and a worker: counts to N, slowly the first time.

`count_up.py FILE N` goes on from FILE. Asked to leave, it says whether its worker still lives,
writes FILE and leaves with a code that only it knows.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

LEAVES_WITH = 9
told: list[str] = []


def work() -> None:
    for one in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(one, signal.SIG_DFL)
    while True:
        time.sleep(1)


def main() -> int:
    file, goal = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGUSR1, lambda *_: told.append("USR1"))
    signal.signal(signal.SIGTERM, lambda *_: told.append("TERM"))  # as torchrun passes it on
    worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    worker.start()
    n = int(file.read_text()) if file.exists() else 0
    print(f"from {n}", flush=True)
    pause_s = 0.01 if "SLURM_RESTART_COUNT" in os.environ else 1.0
    while n < goal and not told:
        time.sleep(pause_s)
        n += 1
    if told:
        time.sleep(0.5)
        print(f"told at {n}, worker {'lives' if worker.is_alive() else 'is dead'}", flush=True)
        file.write_text(str(n))
    else:
        print(f"done {n}", flush=True)
    worker.kill()
    return LEAVES_WITH if told else 0


if __name__ == "__main__":
    sys.exit(main())
