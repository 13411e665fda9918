"""A rank of a small distributed program: says what it found, and sums up over all ranks.

`slurm_rank.py HOLD` keeps its group until the file HOLD exists, after it has made HOLD.rank-N.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from slurm_cluster import wait_for

from hotlap.distributed.launch import detect, start


def main() -> None:
    launch = detect(os.environ)
    total = torch.tensor([launch.rank + 1.0])
    with start(launch, timeout_s=60, device="cpu"):
        if dist.is_initialized():
            dist.all_reduce(total)
        if len(sys.argv) > 1:
            hold = Path(sys.argv[1])
            hold.with_name(f"{hold.name}.rank-{launch.rank}").touch()
            wait_for(hold.exists, "the other job")
    found = {
        **dataclasses.asdict(launch),
        "total": total.item(),
        "node": os.environ.get("SLURMD_NODENAME"),
        "job": os.environ.get("SLURM_JOB_ID"),
    }
    # In one write, so that the lines of several ranks do not mix.
    os.write(1, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    main()
