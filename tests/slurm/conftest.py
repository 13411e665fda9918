"""The Slurm that the tests in this folder talk to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from debian import install_missing
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
    install_missing(PACKAGES, "a real Slurm")
    with Cluster() as started:
        yield started
