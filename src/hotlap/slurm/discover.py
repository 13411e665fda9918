"""A profile from the live cluster: what `scontrol` and `sacctmgr` tell any user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date

from hotlap.errors import UsageError
from hotlap.records.cluster import Cluster, NodeType, Partition, Qos, Source
from hotlap.slurm import programs
from hotlap.slurm.forms import count_of, parse_hours, whole
from hotlap.slurm.forms import fields as pairs
from hotlap.slurm.profile_text import flatten

_GPU = re.compile(r"gpu(?::([^:,(]+))?:(\d+)")
LIVE = "live"
COMMANDS = "scontrol show config, node, partition; sacctmgr show qos"


@dataclass(frozen=True, slots=True)
class _Node:
    kind: NodeType
    partitions: tuple[str, ...]


def discover() -> Cluster:
    """The profile of the cluster that this machine belongs to."""
    config = _config()
    nodes = [_node(pairs(line), config) for line in _lines("node")]
    with_gpus = [one for one in nodes if one is not None]
    if not with_gpus:
        raise UsageError("no node of this cluster has a GPU that Slurm knows of")
    names = _name_kinds([one.kind for one in with_gpus])
    partitions: dict[str, Partition] = {}
    for line in _lines("partition"):
        partitions |= _partitions(pairs(line), with_gpus, names)
    cluster = Cluster(
        name=re.sub(r"[^a-z0-9_.-]", "-", config["ClusterName"].lower()).lstrip("-_.") or "here",
        title=f"{config['ClusterName']}, as it described itself",
        slurm_name=config["ClusterName"],
        unit="billing" if any(p.charge_per_gpu_hour for p in partitions.values()) else None,
        nodes={name: kind for kind, name in names.items()},
        partitions=partitions,
        qos=_qos(),
        sources={LIVE: Source(COMMANDS, date.today().isoformat())},
    )
    return replace(cluster, provenance=dict.fromkeys(flatten(cluster), LIVE))


def slurm_name() -> str:
    """The ClusterName of the live cluster."""
    return _config()["ClusterName"]


def _config() -> dict[str, str]:
    found = {}
    for line in programs.output(["scontrol", "show", "config"]).splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip()
    return {"ClusterName": "cluster", **found}


def _lines(what: str) -> list[str]:
    return programs.output(["scontrol", "--oneliner", "show", what]).splitlines()


def _node(found: Mapping[str, str], config: Mapping[str, str]) -> _Node | None:
    match = _GPU.search(found.get("Gres", ""))
    if match is None:
        return None
    gpus = int(match[2])
    threads = max(1, int(found.get("ThreadsPerCore", "1")))
    cores = int(found["CPUTot"]) // threads
    memory_mb = whole(found.get("RealMemory", ""))
    # Memory that Slurm hands out, and no word about a job's share: a job would get the whole.
    is_counted = "MEMORY" in config.get("SelectTypeParameters", "").upper()
    has_default = any(whole(config.get(f"DefMemPer{one}", "")) for one in ("CPU", "Node"))
    kind = NodeType(
        gpu=(match[1] or "gpu").lower(),
        gpus=gpus,
        cores=cores,
        cores_per_gpu=max(1, cores // gpus),
        threads_per_core=threads,
        memory_gb=memory_mb // 1024 if memory_mb else None,
        gres=f"gpu:{match[1]}" if match[1] else "gpu",
        asks_memory=is_counted and not has_default and bool(memory_mb),
    )
    return _Node(kind, tuple(found.get("Partitions", "").split(",")))


def _name_kinds(kinds: list[NodeType]) -> dict[NodeType, str]:
    names: dict[NodeType, str] = {}
    for kind in kinds:
        if kind not in names:
            base = f"{kind.gpus}x{re.sub(r'[^a-z0-9_.-]', '-', kind.gpu)}"
            n_same = sum(name == base or name.startswith(f"{base}-") for name in names.values())
            names[kind] = f"{base}-{n_same + 1}" if n_same else base
    return names


def _partitions(
    found: Mapping[str, str], nodes: list[_Node], names: Mapping[NodeType, str]
) -> dict[str, Partition]:
    """One entry for each kind of node that a partition has."""
    name = found["PartitionName"]
    kinds = list(dict.fromkeys(one.kind for one in nodes if name in one.partitions))
    weights = dict(
        part.lower().partition("=")[::2] for part in found.get("TRESBillingWeights", "").split(",")
    )
    charge = weights.get("gres/gpu", "")
    result = {}
    for kind in kinds:
        key = name if kind == kinds[0] else f"{name}-{names[kind]}"
        n_nodes = sum(one.kind == kind and name in one.partitions for one in nodes)
        result[key] = Partition(
            node=names[kind],
            name=None if key == name else name,
            max_hours=parse_hours(found.get("MaxTime", "")),
            max_nodes=min(whole(found.get("MaxNodes", "")) or n_nodes, n_nodes),
            exclusive=found.get("OverSubscribe", "").startswith("EXCLUSIVE"),
            default=found.get("Default") == "YES",
            charge_per_gpu_hour=float(charge) if re.fullmatch(r"\d+(\.\d+)?", charge) else None,
        )
    return result


def _qos() -> dict[str, Qos]:
    """The QoS with their limits; none where the cluster keeps no accounts."""
    if not programs.is_there("sacctmgr"):
        return {}
    columns = "format=Name,MaxWall,MaxTRES,MaxTRESPU,MaxJobsPU"
    done = programs.attempt(["sacctmgr", "--noheader", "--parsable2", "show", "qos", columns])
    if done.returncode:
        return {}
    result = {}
    for line in done.stdout.splitlines():
        name, wall, per_job, per_user, n_jobs = line.split("|")
        result[name] = Qos(
            max_hours=parse_hours(wall),
            max_gpus_per_job=count_of(per_job, "gres/gpu"),
            max_gpus_per_user=count_of(per_user, "gres/gpu"),
            max_nodes=count_of(per_job, "node"),
            max_jobs_per_user=whole(n_jobs),
        )
    return result
