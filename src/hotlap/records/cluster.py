"""A cluster's profile: what can be asked of it, each value with where it was read and when.

Cluster     the whole profile, as its TOML file says it
NodeType    what one node has
Partition   where jobs wait, and on which nodes they run
Qos         how long and how wide a job may be
Storage     a space for files
Source      a document, or the live cluster, and the day it was read
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Source:
    where: str
    """An address, or the commands that said so."""
    date: str
    """The day of the values, as 2026-11-15."""
    confirmed: bool = True
    """Whether each of the values was read there, on that day; else they are second-hand."""


@dataclass(frozen=True, slots=True)
class NodeType:
    gpu: str
    """The kind of GPU with its memory, as `--gpu` takes it: 'a100-80gb'."""
    gpus: int
    cores: int
    cores_per_gpu: int
    """What a job should have beside each GPU."""
    threads_per_core: int = 1
    """Each of which Slurm counts as a CPU, unless the cluster's hint says otherwise."""
    memory_gb: float | None = None
    """Of the host, as far as jobs can have it, in the G of `--mem`."""
    gpu_memory_gb: float | None = None
    network: str | None = None
    gres: str = "gpu"
    """What Slurm calls these GPUs: 'gpu', or 'gpu:a100'."""
    asks_memory: bool = False
    """Whether a job has to name its memory to get its share of the node's."""


@dataclass(frozen=True, slots=True)
class Partition:
    node: str
    """A name among the node types."""
    name: str | None = None
    """What Slurm calls it, where that is not its key; empty where jobs name none."""
    constraint: str | None = None
    max_hours: float | None = None
    max_nodes: int | None = None
    """Of one job."""
    exclusive: bool = False
    """Whether a job has, and pays, whole nodes."""
    default: bool = False
    """Whether it is taken where nobody names a kind of GPU."""
    default_qos: str | None = None
    account_suffix: str | None = None
    """What accounts for these nodes end in."""
    charge_per_gpu_hour: float | None = None
    """In the cluster's own unit."""


@dataclass(frozen=True, slots=True)
class Qos:
    partitions: tuple[str, ...] = ()
    """Keys of those where it can be used; none is all."""
    max_hours: float | None = None
    max_gpus_per_job: int | None = None
    max_gpus_per_user: int | None = None
    max_nodes: int | None = None
    """Of one job."""
    max_jobs_per_user: int | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    path: str
    """As a user writes it: '$WORK'."""
    quota: str | None = None
    use: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    title: str
    nodes: dict[str, NodeType]
    partitions: dict[str, Partition]
    qos: dict[str, Qos] = field(default_factory=dict)
    storage: dict[str, Storage] = field(default_factory=dict)
    slurm_name: str | None = None
    """Its ClusterName, by which it is known on the spot."""
    account_form: str | None = None
    unit: str | None = None
    """What the site counts use in."""
    hint: str | None = None
    """For `--hint` of every job."""
    module_hint: str | None = None
    """How torch is usually had there."""
    container: str | None = None
    """The program that runs containers."""
    master_suffix: str = ""
    """What is put behind a node's name to reach it over the fast network."""
    environment: dict[str, str] = field(default_factory=dict)
    """Set for every job: NCCL's settings for this network."""
    sources: dict[str, Source] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    """The name of the source of each value, by its key: 'nodes.h100.gpus'."""

    def partition_name(self, key: str) -> str:
        """What Slurm calls a partition; empty where jobs name none."""
        name = self.partitions[key].name
        return key if name is None else name

    def qos_of(self, partition: str) -> dict[str, Qos]:
        """The QoS that can be used in a partition."""
        return {
            name: one
            for name, one in self.qos.items()
            if not one.partitions or partition in one.partitions
        }
