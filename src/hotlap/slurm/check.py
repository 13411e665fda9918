"""How far a profile agrees with the live cluster."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hotlap.records.cluster import Cluster
from hotlap.wording import n_of

LIMITS = ("max_hours", "max_nodes", "max_gpus_per_job", "max_gpus_per_user", "max_jobs_per_user")


def differences(profile: Cluster, live: Cluster) -> list[str]:
    """What a profile says and the live cluster does not, a sentence each."""
    found = []
    for key, partition in profile.partitions.items():
        name = profile.partition_name(key)
        if not name:
            continue
        there = {
            one: other for one, other in live.partitions.items() if live.partition_name(one) == name
        }
        if not there:
            found.append(f"partitions.{key}: the cluster has no partition with GPUs named {name}")
            continue
        found += _compare(f"partitions.{key}", partition, next(iter(there.values())))
        found += _compare_node(profile, live, key, [other.node for other in there.values()])
    for name, qos in profile.qos.items():
        if live.qos and name not in live.qos:
            found.append(f"qos.{name}: the cluster has no such QoS")
        elif live.qos:
            found += _compare(f"qos.{name}", qos, live.qos[name])
    return found


def _compare(key: str, mine: Any, its: Any) -> list[str]:
    names = [one.name for one in fields(mine) if one.name in LIMITS]
    return [
        f"{key}.{name} is {getattr(mine, name):g} in the profile; the cluster says "
        f"{_said(getattr(its, name))}"
        for name in names
        if getattr(mine, name) not in (None, getattr(its, name))
    ]


def _compare_node(profile: Cluster, live: Cluster, key: str, there: list[str]) -> list[str]:
    mine = profile.nodes[profile.partitions[key].node]
    shapes = [(live.nodes[name].gpus, live.nodes[name].cores) for name in there]
    if (mine.gpus, mine.cores) in shapes:
        return []
    said = " or ".join(f"{n_of(gpus, 'GPU')} and {n_of(cores, 'core')}" for gpus, cores in shapes)
    return [
        f"nodes.{profile.partitions[key].node} has {n_of(mine.gpus, 'GPU')} and "
        f"{n_of(mine.cores, 'core')} in the profile; the nodes of "
        f"{profile.partition_name(key)} have {said}"
    ]


def _said(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g}"
