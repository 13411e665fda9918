"""For every rule on the machine: a Machine that has the fault, and its twin that has not.

The twin is as near to the fault as can be: the same change on the right side of the threshold, or
what makes the same fact harmless. A twin without edits is the recorded Machine itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CPU_MENDED = {"software.torch.products.bfloat16": "usable"}
GIB = 2**30
ONE_NODE = {"system.scheduler.n_nodes": 1}
NO_ADAPTER = {"system.network.infiniband": []}
ETHERNET = {"name": "eth0", "is_up": True, "address": None}


@dataclass(frozen=True)
class Pair:
    rule: str
    fault: dict[str, Any]
    twin: dict[str, Any] = field(default_factory=dict)
    base: str = "gpu_node"

    @property
    def common(self) -> dict[str, Any]:
        """What is true of both."""
        return CPU_MENDED if self.base == "cpu_node" else {}


def environment(**variables: str) -> dict[str, Any]:
    return {f"software.environment.{name}": value for name, value in variables.items()}


def allocated(n_cpus: int) -> dict[str, Any]:
    """So many CPUs, and nothing else that needs more of them."""
    return {
        "system.cpu.n_allocated": n_cpus,
        "software.torch.n_threads": n_cpus,
        "system.storage.kind": "local",
        "ceilings.rates.13.value": 3000.0,
    }


def without_gpus(**torch: Any) -> dict[str, Any]:
    return {"software.torch.is_cuda_available": False, "software.torch.devices": [], **torch}


CPU_BUILD = {
    **without_gpus(),
    "software.torch.cuda": None,
    "software.torch.cudnn": None,
    "software.torch.nccl": None,
    "software.torch.arch_list": [],
    "software.torch.is_tf32_matmul": None,
}
NO_GPUS = {"system.gpus": [], "system.gpu_pairs": []}
NOT_SEEN = {"software.torch.why_no_cuda": "No CUDA GPUs are available"}
HIDDEN = {"system.gpus.0.is_visible": False, "system.gpus.1.is_visible": False}

PAIRS = (
    Pair("torch_missing", {"software.torch": None, "software.why_no_torch": "No module"}),
    Pair("cpu_only_torch", CPU_BUILD, {**CPU_BUILD, **NO_GPUS}),
    Pair("cuda_unavailable", without_gpus(**NOT_SEEN), {**without_gpus(**NOT_SEEN), **NO_GPUS}),
    Pair(
        "no_visible_gpu",
        {**HIDDEN, **environment(CUDA_VISIBLE_DEVICES=""), **without_gpus()},
        {"system.gpus.1.is_visible": False, **environment(CUDA_VISIBLE_DEVICES="0")},
    ),
    Pair(
        "arch_list",
        {"software.torch.arch_list": ["sm_70", "sm_80"]},
        {"software.torch.arch_list": ["sm_70", "sm_90a"]},
    ),
    Pair(
        "arch_list",
        {"software.torch.arch_list": ["sm_80", "compute_80"]},
        {"software.torch.arch_list": ["sm_80", "sm_90", "compute_80"]},
    ),
    Pair(
        "driver_cuda",
        {**without_gpus(), "software.driver": "570.86.10", "software.driver_cuda": "12.8"},
        {"software.torch.cuda": "12.9", "software.driver": "535.1", "software.driver_cuda": "12.2"},
    ),
    Pair("cpu_instructions", {"software.torch.products.bfloat16": "it ended with SIGILL"}),
    Pair(
        "cpu_instructions",
        {"software.torch.products.bfloat16": "it ended with SIGILL"},
        {"software.torch.products.bfloat16": "raises RuntimeError"},
        base="cpu_node",
    ),
    Pair(
        "cpu_capability",
        {"software.torch.cpu_capability": "DEFAULT"},
        {"software.torch.cpu_capability": "AVX2"},
        base="cpu_node",
    ),
    Pair("known_bad", {"software.torch.cudnn": "9.10.2"}, {"software.torch.cudnn": "9.15.0"}),
    Pair(
        "known_bad",
        {"software.torch.cudnn": "9.10.2", "software.torch.version": "2.8.0+cu128"},
        {"software.torch.cudnn": "9.13.0", "software.torch.version": "2.8.0+cu128"},
    ),
    Pair(
        "known_bad",
        {"software.torch.version": "2.9.0+cu128"},
        {"software.torch.version": "2.9.1+cu128"},
    ),
    Pair("cudnn_missing", {"software.torch.cudnn": None}),
    Pair("cudnn_missing", {"software.torch.is_cudnn_enabled": False}),
    Pair(
        "nccl_missing",
        {"software.torch.nccl": None},
        {"software.torch.nccl": None, **HIDDEN, "system.gpus.0.is_visible": True, **ONE_NODE},
    ),
    Pair("debug_build", {"software.torch.is_debug": True}),
    Pair("no_compiler", {"software.compilers": {}}, {"software.compilers": {"clang": "18.1"}}),
    Pair("no_compiler", {"software.compilers": {"g++": "does not work"}}, base="cpu_node"),
    Pair("no_compiler", {"software.packages": {}}, {"software.packages": {"triton": "3.6.0"}}),
    Pair(
        "compile_disabled",
        environment(TORCHDYNAMO_DISABLE="1"),
        environment(TORCHDYNAMO_DISABLE="0"),
    ),
    Pair("decoder_simd", {"software.image.libjpeg_turbo": None}, {"software.image": None}),
    Pair("threads_too_many", {"software.torch.n_threads": 65}, {"software.torch.n_threads": 32}),
    Pair(
        "threads_too_few",
        {"software.torch.n_threads": 1, "system.cpu.n_allocated": 8},
        {
            "software.torch.n_threads": 1,
            "system.cpu.n_allocated": 8,
            **environment(LOCAL_WORLD_SIZE="4"),
        },
        base="cpu_node",
    ),
    Pair("cpus_per_gpu", allocated(3), allocated(4)),
    Pair(
        "cpus_per_gpu",
        {**allocated(7), "system.scheduler": None},
        {**allocated(8), "system.scheduler": None},
    ),
    Pair(
        "host_memory",
        {"system.memory.limit_bytes": 64 * GIB},
        {"system.memory.limit_bytes": 160 * GIB},
    ),
    Pair(
        "small_shm",
        {"system.memory.shared_bytes": 64 << 20},
        {"system.memory.shared_bytes": GIB},
        base="cpu_node",
    ),
    Pair(
        "locked_memory",
        {"system.memory.locked_limit_bytes": 8 << 20},
        {"system.memory.locked_limit_bytes": 8 << 20, **NO_ADAPTER},
    ),
    Pair(
        "open_files",
        {"system.memory.open_files_limit": 1024},
        {"system.memory.open_files_limit": 4096},
        base="cpu_node",
    ),
    Pair("busy_host", {"system.cpu.load_1min": 200.0}, {"system.cpu.load_1min": 190.0}),
    Pair(
        "numa_far",
        {"system.cpu.numa.1.n_cpus_allocated": 0},
        {"system.cpu.numa.1.n_cpus_allocated": 0, "system.gpus.1.numa_node": None},
    ),
    Pair(
        "tf32_override",
        environment(NVIDIA_TF32_OVERRIDE="0"),
        {
            **environment(NVIDIA_TF32_OVERRIDE="0"),
            "system.gpus": [],
            "software.torch.is_cuda_available": False,
            "software.torch.devices": [],
        },
    ),
    Pair(
        "tf32_forced", environment(NVIDIA_TF32_OVERRIDE="1"), environment(NVIDIA_TF32_OVERRIDE="")
    ),
    Pair("tf32_forced", environment(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")),
    Pair(
        "bf16_emulated",
        {
            "system.gpus.0.compute_capability": "7.5",
            "system.gpus.1.compute_capability": "7.5",
        },
        {
            "system.gpus.0.compute_capability": "8.0",
            "system.gpus.1.compute_capability": "8.0",
        },
    ),
    Pair(
        "debug_environment",
        environment(CUDA_LAUNCH_BLOCKING="1"),
        environment(CUDA_LAUNCH_BLOCKING="0"),
    ),
    Pair(
        "debug_environment",
        environment(TORCH_DISTRIBUTED_DEBUG="DETAIL"),
        environment(TORCH_DISTRIBUTED_DEBUG="INFO"),
        base="cpu_node",
    ),
    Pair("debug_environment", environment(NCCL_DEBUG="INFO"), environment(NCCL_DEBUG="WARN")),
    Pair("deterministic", environment(CUBLAS_WORKSPACE_CONFIG=":4096:8")),
    Pair("deterministic", {"software.torch.is_deterministic": True}, base="cpu_node"),
    Pair(
        "loose_environment",
        {"software.python.is_isolated": False},
        {"software.python.is_isolated": False, "system.container": "Apptainer"},
    ),
    Pair(
        "gpu_busy",
        {"system.gpus.0.memory_used_bytes": 20 * GIB},
        {"system.gpus.0.memory_used_bytes": GIB // 2},
    ),
    Pair(
        "gpu_held_back",
        {"system.gpus.1.slowdowns": ["heat"]},
        {"system.gpus.1.slowdowns": ["power cap"]},
    ),
    Pair(
        "power_limit",
        {"system.gpus.0.power_limit_w": 500.0},
        {"system.gpus.0.power_limit_w": 650.0},
    ),
    Pair("ecc_errors", {"system.gpus.1.n_ecc_errors": 1}, {"system.gpus.1.n_ecc_errors": None}),
    Pair("mig", {"system.gpus.0.is_mig": True}, {"system.gpus.0.is_mig": None}),
    Pair("pcie_width", {"system.gpus.0.pcie_width": 8}, {"system.gpus.0.pcie_generation": 1}),
    Pair("gpu_below_sheet", {"ceilings.rates.10.ratio": 0.4}, {"ceilings.rates.2.ratio": 0.4}),
    Pair("gpu_below_sheet", {"ceilings.rates.5.ratio": 0.3}, {"ceilings.rates.5.ratio": 0.5}),
    Pair("host_to_device", {"ceilings.rates.6.value": 3e9}, {"ceilings.rates.6.value": 12e9}),
    Pair(
        "small_files",
        {"system.storage.opens_per_s": 50.0},
        {"system.storage.opens_per_s": 50.0, "system.storage.kind": "local"},
    ),
    Pair("disk_full", {"system.storage.free_bytes": GIB}, {"system.storage.free_bytes": 2 * GIB}),
    Pair("decode_rate", {"ceilings.rates.13.value": 100.0}, {"ceilings.rates.13.value": 250.0}),
    Pair(
        "infiniband_down",
        {
            "system.network.infiniband.0.is_active": False,
            "system.network.infiniband.1.is_active": False,
        },
        {"system.network.infiniband.1.is_active": False},
    ),
    Pair(
        "infiniband_disabled",
        environment(NCCL_IB_DISABLE="1"),
        {**environment(NCCL_IB_DISABLE="1"), **NO_ADAPTER},
    ),
    Pair(
        "p2p_disabled",
        environment(NCCL_P2P_DISABLE="1"),
        {**environment(NCCL_P2P_DISABLE="1"), "system.gpus.1.is_visible": False},
    ),
    Pair(
        "socket_interface",
        environment(NCCL_SOCKET_IFNAME="hsn"),
        environment(NCCL_SOCKET_IFNAME="ib"),
    ),
    Pair(
        "socket_interface",
        environment(NCCL_SOCKET_IFNAME="=ib"),
        environment(NCCL_SOCKET_IFNAME="^docker,eth"),
    ),
    Pair(
        "slow_network",
        {"system.network.interfaces": [{**ETHERNET, "speed_mbit_per_s": 1000}], **NO_ADAPTER},
        {
            "system.network.interfaces": [{**ETHERNET, "speed_mbit_per_s": 1000}],
            **NO_ADAPTER,
            **ONE_NODE,
        },
    ),
    Pair(
        "gpudirect",
        {"system.network.is_gpudirect": False},
        {"system.network.is_gpudirect": False, **ONE_NODE},
    ),
    Pair("exchange_wrong", {"ceilings.exchanges.1.median_s": None}),
    Pair(
        "links_slow",
        {**ONE_NODE, "ceilings.exchanges.1.bus_bytes_per_s": 12e9},
        {
            **ONE_NODE,
            "ceilings.exchanges.1.bus_bytes_per_s": 12e9,
            "system.gpu_pairs.0.path": "host bridge",
        },
    ),
)
