"""Which cluster is meant, and whether it is the one that this machine belongs to."""

from __future__ import annotations

import os

from hotlap.errors import UsageError
from hotlap.records.cluster import Cluster
from hotlap.slurm import programs
from hotlap.slurm.catalogue import VARIABLE, find_by_slurm_name, find_cluster
from hotlap.slurm.discover import discover, slurm_name


def cluster_meant(name: str | None) -> Cluster:
    """The named one, or that of $HOTLAP_CLUSTER, or the one that is here."""
    name = name or os.environ.get(VARIABLE)
    if name:
        return find_cluster(name)
    if not programs.is_there("scontrol"):
        raise UsageError(
            "no cluster is named and there is no Slurm here; name one with --cluster "
            "(`hotlap clusters` lists them)"
        )
    return find_by_slurm_name(slurm_name()) or discover()


def is_here(cluster: Cluster) -> bool:
    """Whether the live cluster has partitions of this one: then a user's rights there are known."""
    if not programs.is_there("sinfo"):
        return False
    done = programs.attempt(["sinfo", "--noheader", "--format=%R"])
    names = {cluster.partition_name(key) for key in cluster.partitions}
    return done.returncode == 0 and bool(names & set(done.stdout.split()))
