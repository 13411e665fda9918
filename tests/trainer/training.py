"""Starts trainings of the tiny recipe as a user would, and reads what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hotlap.data.tokens import prepare_text

HERE = Path(__file__).parent
TINY = str(HERE / "tiny.toml")
TEXT = HERE.parents[1] / "LICENSE"
TIMEOUT_S = 120


def make_tokens(folder: Path) -> Path:
    """A folder of tokens of a real text."""
    prepare_text(TEXT, folder)
    return folder


def words_of(*words: str, n_ranks: int = 1) -> list[str]:
    """The command that runs a module or a script on so many ranks."""
    if n_ranks == 1:
        return [sys.executable, "-W", "ignore", *words]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks))
    return [sys.executable, "-W", "ignore", *torchrun, *words]


def environment() -> dict[str, str]:
    """One thread each, since ranks share the cores; FLOPs are not what is looked at."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HOTLAP_SKIP_FLOPS": "1"}


def train(folder: Path, *changes: str, n_ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """Train the tiny recipe in a folder, to the end."""
    words = words_of("-m", "hotlap.trainer", TINY, *changes, n_ranks=n_ranks)
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S
    )


def begin(folder: Path, *changes: str, n_ranks: int = 1) -> subprocess.Popen[str]:
    """The same, without waiting for it."""
    words = words_of("-m", "hotlap.trainer", TINY, *changes, n_ranks=n_ranks)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step; the last one said counts."""
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["step"]: one["loss"] for one in entries if one["part"] == "train"}


def runs(folder: Path) -> list[dict[str, Any]]:
    """The Runs that were recorded in a folder, in the order of their ids."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(".hotlap/*/run.json"))]


def wait_until_it_trains(folder: Path, name: str = "training") -> None:
    """Until it has told its first loss."""
    log = folder / name / "log.jsonl"
    deadline = time.monotonic() + TIMEOUT_S
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline, "no step was made"
        time.sleep(0.005)


def ranks_of(agent: int) -> list[int]:
    """The processes that torchrun has started."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    found = []
    for child in map(int, children):
        command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"hotlap.trainer" in command:
            found.append(child)
    return sorted(found)


def weights(folder: Path) -> bytes:
    """The exported file."""
    return (folder / "training" / "weights.safetensors").read_bytes()
