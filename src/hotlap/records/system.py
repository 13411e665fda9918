"""The System: the hardware of one node as this process sees it.

Unknown is None, never a guess; an empty tuple means that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Usable = Literal["usable", "dies", "unknown"]
"""Of an instruction class: it ran, it ended the process that tried it, it could not be tried."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Another process that holds memory of a GPU."""

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    """As the driver counts, whatever CUDA_VISIBLE_DEVICES says."""
    name: str
    uuid: str | None = None
    is_visible: bool = True
    """Whether CUDA_VISIBLE_DEVICES lets a training have it."""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    n_sms: int | None = None
    compute_capability: str | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    slowdowns: tuple[str, ...] = ()
    """Why its clocks are held down now: heat, a power brake, its power cap."""
    is_ecc: bool | None = None
    n_ecc_errors: int | None = None
    """Errors that could not be corrected, since the driver was loaded."""
    is_mig: bool | None = None
    """Whether it is cut into partitions."""
    is_persistent: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    n_nvlinks: int | None = None
    """Active links to other GPUs or switches."""
    numa_node: int | None = None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuPair:
    """How two GPUs reach each other."""

    a: int
    b: int
    path: str
    """'NVLink', or the nearest common part: 'one board', 'one switch', 'switches', 'host bridge',
    'NUMA node', 'across sockets'."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """One instruction class of a CPU."""

    name: str
    """As Linux names its flag."""
    is_advertised: bool
    state: Usable


@dataclass(frozen=True, slots=True)
class NumaNode:
    index: int
    n_cpus: int | None
    n_cpus_allocated: int | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Cpu:
    model: str | None
    architecture: str | None
    n_cpus: int | None
    """Logical CPUs of the machine."""
    n_cores: int | None
    """Physical cores of the machine."""
    n_sockets: int | None
    n_allocated: int | None
    """Logical CPUs that this process may use: the least of the bounds."""
    bounds: dict[str, int]
    """What allocates them: 'affinity', 'cgroup quota', 'Slurm'."""
    governor: str | None
    load_1min: float | None
    is_virtual: bool | None
    instructions: tuple[Instructions, ...]
    numa: tuple[NumaNode, ...]


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None
    """Of the control group; None where there is no limit."""
    shared_bytes: int | None
    """Size of /dev/shm, through which the workers of a DataLoader hand over batches."""
    locked_limit_bytes: int | None
    """How much may be pinned; None where there is no limit."""
    open_files_limit: int | None


@dataclass(frozen=True, slots=True)
class Storage:
    """What lies under one path."""

    path: str
    mount: str | None
    filesystem: str | None
    kind: Literal["local", "network", "memory", "unknown"]
    free_bytes: int | None
    read_bytes_per_s: float | None
    """One sequential reader."""
    opens_per_s: float | None
    """Small files opened, read and closed by one process."""
    measured_on: str
    """'files that are there', 'files of our own', or why nothing was measured."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of the operating system."""

    name: str
    is_up: bool | None
    speed_mbit_per_s: int | None
    address: str | None


@dataclass(frozen=True, slots=True)
class InfiniBand:
    """A port of an InfiniBand or RoCE adapter."""

    device: str
    port: int
    is_active: bool
    rate_gbit_per_s: float | None
    link_layer: str | None


@dataclass(frozen=True, slots=True)
class Network:
    interfaces: tuple[Interface, ...]
    infiniband: tuple[InfiniBand, ...]
    is_gpudirect: bool | None
    """Whether the module is loaded through which adapters reach GPU memory."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The job that this process belongs to."""

    name: str
    job_id: str | None
    n_nodes: int | None
    n_tasks: int | None
    n_cpus_per_task: int | None
    partition: str | None


@dataclass(frozen=True, slots=True)
class System:
    hostname: str | None
    kernel: str | None
    gpus: tuple[Gpu, ...]
    gpus_from: str
    """Who told of them: 'NVML', 'nvidia-smi', or why there are none."""
    gpu_pairs: tuple[GpuPair, ...]
    cpu: Cpu
    memory: HostMemory
    storage: Storage | None
    network: Network
    container: str | None
    """Its kind; None outside of one."""
    scheduler: Scheduler | None
