"""Say in one JSON line what this task of a job finds."""

from __future__ import annotations

import json
import os
import sys

NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS"),
    *("SLURM_CPU_BIND", "HOTLAP_RUNS_DIR", "SLURM_JOB_PARTITION", "FROM_OUTSIDE"),
)

if __name__ == "__main__":
    found = {name: os.environ.get(name) for name in NAMES}
    # In one write, so that the lines of several ranks do not mix.
    os.write(1, f"{json.dumps({**found, 'argv': sys.argv[1:]})}\n".encode())
