"""Slurm's own programs: run with a clean environment, and one sentence where they cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotlap.errors import UsageError

TIMEOUT_S = 60
INHERITED = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "TORCHELASTIC_", "PET_")
"""What an enclosing job, or a user's habits, would make of our commands."""
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


class NoAnswer(UsageError):
    """Slurm was asked, and what it did is not known."""


def is_there(program: str = "sbatch") -> bool:
    """Whether a program of Slurm's can be run here."""
    return shutil.which(program) is not None


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what an enclosing job has left in it."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT or not (name.startswith(INHERITED) or name in RANK_VARIABLES)
    }


def attempt(
    words: Sequence[str], cwd: Path | None = None, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs to its end, whatever it says."""
    timeout_s = timeout_s or TIMEOUT_S
    if not is_there(words[0]):
        raise UsageError(
            f"there is no Slurm here: the program {words[0]} was not found; run this on a login "
            "node of the cluster (`hotlap submit --dry-run` and `hotlap clusters` work anywhere)"
        )
    try:
        return subprocess.run(
            words,
            cwd=cwd,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            f"Slurm does not answer: {words[0]} was given {timeout_s:g} s; try again later"
        ) from None
    except OSError as error:
        raise UsageError(f"{words[0]} cannot be started: {error.strerror}") from None


def output(words: Sequence[str]) -> str:
    """What one of Slurm's programs prints; its own complaint where it fails."""
    done = attempt(words)
    if done.returncode:
        raise UsageError(complaint(done))
    return done.stdout


NO_CLUSTER = "Could not establish a configuration source"
"""What Slurm's programs end with where no slurm.conf names a cluster."""


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What a program that failed said of it."""
    if NO_CLUSTER in done.stderr:
        return (
            f"Slurm's programs are here, but no cluster: {done.args[0]} found no slurm.conf; run "
            "this on a login node (`hotlap submit --dry-run --cluster NAME` works anywhere)"
        )
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    return f"{done.args[0]} failed: {said}"


def table(words: Sequence[str]) -> list[list[str]]:
    """The rows of a program that prints one a line, with bars between the cells."""
    return [line.split("|") for line in output(words).splitlines() if line]
