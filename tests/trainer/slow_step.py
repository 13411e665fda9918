"""Trains as `python -m hotlap.trainer` does, but the model of rank 1 stands still in one forward.

torchrun --nproc-per-node 2 slow_step.py CALL RECIPE key=value …
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

from hotlap.models.gpt import GPT
from hotlap.trainer.__main__ import main

forward, counter = GPT.forward, itertools.count()


def stand_still(self: GPT, *args: Any, **kwargs: Any) -> Any:
    if os.environ["RANK"] == "1" and next(counter) == int(sys.argv[1]):
        time.sleep(100_000)
    return forward(self, *args, **kwargs)


GPT.forward = stand_still  # type: ignore[method-assign]
sys.exit(main(sys.argv[2:]))
