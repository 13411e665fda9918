"""Point to point and the collectives between ranks, measured in processes of their own.

Under a launcher each rank starts one process that joins those of the others. Alone, on a node of
several GPUs, torchrun starts one for each GPU. This side never imports torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import RecordError
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
SIZES, QUICK_SIZES = "4KiB,64MiB", "4KiB,4MiB"
REPEATS, QUICK_REPEATS = 10, 5
TIMEOUT_S = 60.0


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
        options = ["--sizes", QUICK_SIZES if is_quick else SIZES, "--json", str(result)]
        options += ["--repeats", str(QUICK_REPEATS if is_quick else REPEATS)]
        trouble = _start([*words, *options], environ)
        try:
            document = read_json(result)
        except RecordError:
            return Measured((), f"not measured: {trouble or 'this rank keeps nothing'}")
    return Measured(tuple(map(_exchange, document["records"])), document["launch"]["reason"])


def _start(words: list[str], environ: Mapping[str, str]) -> str:
    """Run it to its end; why it did not come there."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environ),
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"no end after {TIMEOUT_S:.0f} s"
        raise
    lines = [line for line in err.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("hotlap: ")), lines[-1] if lines else "")
    return said.removeprefix("hotlap: ")[:200] if process.returncode else ""


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
