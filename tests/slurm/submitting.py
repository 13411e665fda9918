"""Submit with hotlap as a user would, wait for the end, and see what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_cluster import Cluster, wait_for

from hotlap.slurm.forms import fields

HOTLAP = (sys.executable, "-m", "hotlap")
ACCOUNTS = {"v100": "abc@v100", "a100": "abc@a100", "h100": "abc@h100"}
JOB_S = 100
QUICK = {"OMP_NUM_THREADS": "1", "HOTLAP_SKIP_FLOPS": "1"}


@dataclass(frozen=True)
class Submitted:
    """A job that was sent."""

    cluster: Cluster
    id: str
    folder: Path

    def text(self, kind: str = "out", task: int | None = None) -> str:
        """What it printed so far."""
        stem = self.id if task is None else f"{self.id}_{task}"
        path = self.folder / f"{stem}.{kind}"
        return path.read_text() if path.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines of its stdout, by rank."""
        found = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return sorted(found, key=lambda line: int(line.get("RANK") or 0))

    def shown(self) -> dict[str, str]:
        """What Slurm says of it."""
        done = self.cluster.run(["scontrol", "--oneliner", "show", "job", self.id])
        return fields(done.stdout.splitlines()[0]) if done.stdout else {}

    def state(self) -> str:
        return self.shown().get("JobState", "")

    def wait(self, timeout_s: float = JOB_S) -> str:
        """Its state once it is over."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        wait_for(lambda: self.state() in over, f"job {self.id}", timeout_s)
        return self.state()


def hotlap(
    cluster: Cluster, cwd: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of hotlap's, in a folder, with the cluster at hand."""
    return subprocess.run(
        [*HOTLAP, *words],
        cwd=cwd,
        env=cluster.environment({**QUICK, **(env or {})}),
        capture_output=True,
        text=True,
        timeout=90,
    )


def submit(
    cluster: Cluster, cwd: Path, gpu: str, *words: str, env: Mapping[str, str] | None = None
) -> Submitted:
    """The one job that `hotlap submit` sends."""
    (one,) = submit_all(cluster, cwd, gpu, words, env)
    return one


def submit_all(
    cluster: Cluster,
    cwd: Path,
    gpu: str,
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> list[Submitted]:
    """All the jobs that `hotlap submit` sends."""
    result = cwd / "sent.json"
    options = ["--gpu", gpu, "--account", ACCOUNTS[gpu], "--json", str(result)]
    done = hotlap(cluster, cwd, "submit", *options, *words, env=env)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(result.read_text())
    return [Submitted(cluster, job["id"], Path(job["request"]["folder"])) for job in jobs]
