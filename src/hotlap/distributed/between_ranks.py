"""Point to point and the collectives between ranks, measured in processes of their own.

Under a launcher each rank starts one process that joins those of the others. Alone, on a node of
several GPUs, torchrun starts one for each GPU. This side never imports torch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import RecordError
from hotlap.machine.child import run_to_end
from hotlap.records.ceilings import Exchange
from hotlap.records.codec import read_json

RANKS = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
}
"""By launcher, nearest to the process first: the variables of the rank and of how many there are.
Slurm's second one is set in a step alone, and not in the script of a job."""
SMALL, LARGE, LARGE_ON_GPUS = "4KiB", "4MiB", "64MiB"
"""Latency from the small one. NVLink shows its bandwidth in large ones only, which would take a
minute over Ethernet."""
GPU_FILES = ("nvidia[0-9]*", "kfd")
REPEATS, QUICK_REPEATS = 10, 5
TIMEOUT_S = 60.0
OWN_WORDS = "hotlap: "
"""Before a sentence of ours, which says more than the last line of a launcher's."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What ranks can say to each other, on the rank that keeps it."""

    exchanges: tuple[Exchange, ...]
    note: str


def find_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank among several; None where it is alone."""
    for rank, size in RANKS.items():
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return int(environ[rank]) if int(environ[size]) > 1 else None
    return None


def measure_between_ranks(
    n_gpus: int, is_quick: bool, environ: Mapping[str, str] = os.environ
) -> Measured:
    """Measure with the ranks that a launcher started, or with one a GPU of this node."""
    module = ["-m", "hotlap.distributed.collectives"]
    if find_rank(environ) is not None:
        return _run([sys.executable, *module], is_quick, environ)
    if n_gpus > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_gpus}"]
        return _run([sys.executable, *torchrun, *module], is_quick, environ)
    return Measured(
        (), "not measured: one process; `torchrun --nproc-per-node N -m hotlap doctor` has several"
    )


def _run(words: list[str], is_quick: bool, environ: Mapping[str, str]) -> Measured:
    with tempfile.TemporaryDirectory(prefix="hotlap-") as folder:
        result = Path(folder) / "exchanges.json"
        large = LARGE_ON_GPUS if _has_gpu() and not is_quick else LARGE
        options = ["--sizes", f"{SMALL},{large}", "--json", str(result)]
        options += ["--repeats", str(QUICK_REPEATS if is_quick else REPEATS)]
        _, err, trouble = run_to_end([*words, *options], TIMEOUT_S, environ)
        try:
            document = read_json(result)
        except RecordError:
            said = [line for line in err.splitlines() if line.startswith(OWN_WORDS)]
            why = said[0].removeprefix(OWN_WORDS) if said else trouble
            return Measured((), f"not measured: {why or 'this rank keeps nothing'}")
    return Measured(tuple(map(_exchange, document["records"])), document["launch"]["reason"])


def _has_gpu() -> bool:
    """By the files of NVIDIA's and AMD's drivers; this side does not ask torch."""
    return any(True for name in GPU_FILES for _ in Path("/dev").glob(name))


def _exchange(record: Mapping[str, Any]) -> Exchange:
    bus = record["bus_gb_per_s"]
    return Exchange(
        operation=record["operation"],
        n_bytes=record["n_bytes"],
        world_size=record["world_size"],
        device=record["device"],
        median_s=record["median_s"],
        bus_bytes_per_s=None if bus is None else bus * 1e9,
    )
