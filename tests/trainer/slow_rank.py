"""Trains as `python -m hotlap.trainer` does, but one batch of one rank takes its time to load.

torchrun --nproc-per-node 2 slow_rank.py RANK BATCH SECONDS RECIPE key=value …
"""

from __future__ import annotations

import itertools
import os
import sys
import time

from hotlap.data.sampling import Batch, Request
from hotlap.data.tokens import WindowSource
from hotlap.trainer.__main__ import main

rank, slow_batch, seconds = map(int, sys.argv[1:4])
load, counter = WindowSource.batch, itertools.count()


def batch(self: WindowSource, request: Request) -> Batch:
    if os.environ["RANK"] == str(rank) and next(counter) == slow_batch:
        time.sleep(seconds)
    return load(self, request)


WindowSource.batch = batch  # type: ignore[method-assign]
sys.exit(main(sys.argv[4:]))
