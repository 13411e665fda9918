"""Trains as `python -m hotlap.trainer` does, but rank 1 begins to write a checkpoint late.

Meanwhile the loops of the ranks talk to one another, here after every step.

torchrun --nproc-per-node 2 late_writer.py SECONDS RECIPE key=value …
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

from hotlap.trainer import signals
from hotlap.trainer.__main__ import main

set_up = FileSystemWriter.set_up_storage_writer


def set_up_late(self: FileSystemWriter, *args: Any, **kwargs: Any) -> None:
    """It comes before the ranks agree on what each of them writes."""
    if os.environ["RANK"] == "1":
        time.sleep(float(sys.argv[1]))
    set_up(self, *args, **kwargs)


signals.BETWEEN_TALKS_NS = 0
FileSystemWriter.set_up_storage_writer = set_up_late  # type: ignore[method-assign]
sys.exit(main(sys.argv[2:]))
