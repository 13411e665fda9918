"""The GPUs that `hotlap plan` is asked about: by options, or by the profile of a cluster."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from math import ceil

from hotlap.cli.plan_model import needed
from hotlap.errors import UsageError
from hotlap.planner.cluster import KINDS, Gpus
from hotlap.records.cluster import Cluster, NodeType, Partition
from hotlap.wording import n_of

ADAPTER_GB_PER_S = {
    "Slingshot-11": 25.0,
    "InfiniBand NDR400": 50.0,
    "InfiniBand NDR": 50.0,
    "InfiniBand NDR200": 25.0,
    "InfiniBand HDR": 25.0,
    "InfiniBand HDR200": 25.0,
    "InfiniBand HDR100": 12.5,
    "InfiniBand EDR": 12.5,
    "Omni-Path": 12.5,
}
"""One way, of one adapter: 200 Gbit/s of Slingshot-11 and HDR, 400 of NDR, 100 of Omni-Path."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a plan would run."""

    gpus: Gpus
    cluster: str = ""
    """The name of its profile; empty where the GPUs were given one by one."""
    submitted_as: str = ""
    """What the profile calls its kind of GPU."""
    charge_per_gpu_hour: float | None = None
    """In the site's unit; whole nodes where jobs have them whole."""
    charge_unit: str = ""


def site_of(arguments: argparse.Namespace) -> Site:
    """By `--cluster`, whose values options may stand for, or by options alone."""
    if arguments.gpu:
        arguments.gpu = arguments.gpu.lower()
    if arguments.cluster:
        from hotlap.slurm.catalogue import find_cluster

        return _by_profile(find_cluster(arguments.cluster), needed(arguments, "gpus"), arguments)
    kind, n = needed(arguments, "gpu"), needed(arguments, "gpus")
    per_node = arguments.gpus_per_node
    if per_node is None:
        if n > 1 and not arguments.params:
            raise UsageError("--gpus-per-node is not given; it decides how GPUs talk")
        per_node = n
    gpus = Gpus(kind, n, per_node, arguments.interconnect or 0.0)
    return Site(_with_host(gpus, arguments, None))


def _with_host(gpus: Gpus, arguments: argparse.Namespace, memory_gb: float | None) -> Gpus:
    """Its memory and its link: what is given, else what a profile says."""
    memory = arguments.host_memory or memory_gb
    return replace(
        gpus,
        host_memory_bytes=memory * 2**30 if memory else None,
        own_host_link_gb_per_s=arguments.host_link,
    )


def _by_profile(cluster: Cluster, n: int, arguments: argparse.Namespace) -> Site:
    partition = _partition(cluster, arguments.gpu)
    node = cluster.nodes[partition.node]
    per_node = arguments.gpus_per_node or node.gpus
    if per_node > node.gpus:
        raise UsageError(
            f"--gpus-per-node is {per_node}; a node of {cluster.name} has {n_of(node.gpus, 'GPU')}"
        )
    network = arguments.interconnect
    if network is None and n > per_node:
        network = network_gb_per_s(node)
        if network is None:
            raise UsageError(
                f"--interconnect is not given; the profile of {cluster.name} says "
                f"'{node.network or 'nothing'}' of its network, which is no rate: give the GB/s of "
                "a node, one way"
            )
    memory = None
    if node.gpu not in KINDS and node.gpu_memory_gb:  # another chip stands for it
        memory = int(node.gpu_memory_gb * 2**30)
    kind = _kind(cluster, node, arguments.gpu)
    gpus = Gpus(kind, n, per_node, network or 0.0, own_memory_bytes=memory)
    gpus = _with_host(gpus, arguments, node.memory_gb)
    charge = partition.charge_per_gpu_hour
    if charge is not None and partition.exclusive:
        charge *= ceil(n / per_node) * node.gpus / n
    return Site(gpus, cluster.name, node.gpu, charge, cluster.unit or "")


def _partition(cluster: Cluster, wanted: str | None) -> Partition:
    """The default one of the wanted kind, else the first."""
    gpu_of = {key: cluster.nodes[one.node].gpu for key, one in cluster.partitions.items()}
    kinds = list(dict.fromkeys(gpu_of.values()))
    if wanted is None and len(kinds) > 1:
        raise UsageError(f"--gpu is not given; {cluster.name} has {', '.join(kinds)}")
    same = [key for key, gpu in gpu_of.items() if wanted in (None, gpu)]
    if not same and wanted:
        family = wanted.lower().split("-")[0]
        same = [key for key, gpu in gpu_of.items() if gpu.split("-")[0] == family]
    if not same:
        raise UsageError(f"--gpu is '{wanted}'; {cluster.name} has {', '.join(kinds)}")
    found = [cluster.partitions[key] for key in same]
    return next((one for one in found if one.default), found[0])


def _kind(cluster: Cluster, node: NodeType, wanted: str | None) -> str:
    """A row of the planner's table: what the profile names, or what stands for it."""
    for name in (node.gpu, wanted or ""):
        if name in KINDS:
            return name
    near = [kind for kind in KINDS if kind.split("-")[0] == node.gpu.split("-")[0]]
    raise UsageError(
        f"--gpu: {cluster.name} has '{node.gpu}', of which no figures are known; say which stands "
        f"for it: {', '.join(near or KINDS)}"
    )


def network_gb_per_s(node: NodeType) -> float | None:
    """Of a node, one way, from the words of a profile; None where they do not say."""
    text = node.network or ""
    by_gpu = re.search(r"([\d.]+) GB/s a GPU", text)
    if by_gpu:
        return float(by_gpu[1]) * node.gpus
    by_node = re.search(r"([\d.]+) Gb/s a node", text)
    if by_node:
        return float(by_node[1]) / 8
    counted = re.fullmatch(r"(\d+) x (dual )?(.+)", text)
    rate = ADAPTER_GB_PER_S.get(counted[3]) if counted else None
    if counted is None or rate is None:
        return None
    return int(counted[1]) * (2 if counted[2] else 1) * rate
