"""The Slurm that the tests in this folder talk to."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster

PACKAGES = {
    "slurm-wlm": "slurmctld",
    "slurm-client": "srun",
    "slurmdbd": "slurmdbd",
    "munge": "munged",
    "mariadb-server": "mariadbd",
    "environment-modules": "modulecmd",
}
"""Debian's, each with a program by which to see that it is there."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of six nodes, started once a session."""
    if os.geteuid() != 0:
        pytest.fail("these tests start a real Slurm, whose nodes only root can make: run as root")
    _install_what_is_missing()
    with Cluster() as started:
        yield started


def _install_what_is_missing() -> None:
    missing = [package for package, program in PACKAGES.items() if not shutil.which(program)]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        pytest.fail(f"these tests need a real Slurm; install what Debian calls {missing}")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            [*apt, *words], env=environment, capture_output=True, text=True, timeout=240
        )
        if done.returncode:
            pytest.fail(f"apt-get {' '.join(words)}: {done.stderr[-2000:]}")
