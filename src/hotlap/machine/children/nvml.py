"""What NVIDIA's driver tells of its GPUs, by nvidia-ml-py. A fact that it does not tell is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hotlap.machine.child import tell

# From the highest on: which part of the machine two GPUs have in common.
PATHS = {
    50: "across sockets",
    40: "NUMA node",
    30: "host bridge",
    20: "switches",
    10: "one switch",
    0: "one board",
}
SLOWDOWNS = {4: "power cap", 8: "hardware slowdown", 32: "heat", 64: "heat", 128: "power brake"}
"""Bits of NVML's reasons for lower clocks. Its power cap is normal under full load."""


def main(argv: Sequence[str]) -> None:
    """Tell of the driver, of each GPU and of each pair of them."""
    import pynvml

    pynvml.nvmlInit()
    tell({"driver": _try(pynvml.nvmlSystemGetDriverVersion), "driver_cuda": _cuda(pynvml)})
    handles = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    for index, handle in enumerate(handles):
        tell({"gpu": _gpu(pynvml, index, handle)})
    for a, first in enumerate(handles):
        for b, second in list(enumerate(handles))[a + 1 :]:
            tell({"pair": {"a": a, "b": b, "path": _path(pynvml, first, second)}})


def _try(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        value = call(*arguments)
    except Exception:
        return None
    return value.decode() if isinstance(value, bytes) else value


def _cuda(nvml: Any) -> str | None:
    number = _try(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _gpu(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    def ask(name: str, *arguments: Any) -> Any:
        return _try(getattr(nvml, f"nvmlDeviceGet{name}", None) or _absent, handle, *arguments)

    # The second version leaves out what the driver keeps for itself.
    memory = ask("MemoryInfo", getattr(nvml, "nvmlMemory_v2", None)) or ask("MemoryInfo")
    capability = ask("CudaComputeCapability")
    return {
        "index": index,
        "name": ask("Name") or "unknown",
        "uuid": ask("UUID"),
        "memory_bytes": getattr(memory, "total", None),
        "memory_used_bytes": getattr(memory, "used", None),
        "n_sms": getattr(ask("Attributes"), "multiprocessorCount", None),
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_SM),
        "clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_MEM),
        "power_w": _watts(ask("PowerUsage")),
        "power_limit_w": _watts(ask("EnforcedPowerLimit")),
        "power_default_w": _watts(ask("PowerManagementDefaultLimit")),
        "temperature_c": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "slowdowns": _slowdowns(ask("CurrentClocksThrottleReasons")),
        "is_ecc": _first_bit(ask("EccMode")),
        "n_ecc_errors": ask(
            "TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        "is_mig": _first_bit(ask("MigMode")),
        "is_persistent": _bit(ask("PersistenceMode")),
        "pcie_generation": ask("CurrPcieLinkGeneration"),
        "pcie_generation_max": ask("MaxPcieLinkGeneration"),
        "pcie_width": ask("CurrPcieLinkWidth"),
        "pcie_width_max": ask("MaxPcieLinkWidth"),
        "n_nvlinks": sum(
            ask("NvLinkState", link) == nvml.NVML_FEATURE_ENABLED
            for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        ),
        "bus_id": getattr(ask("PciInfo"), "busId", None),
        "processes": _processes(nvml, ask("ComputeRunningProcesses") or []),
    }


def _absent(*_: Any) -> None:
    """An older nvidia-ml-py does not have this call."""


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _bit(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _first_bit(values: Sequence[int] | None) -> bool | None:
    """Of a pair of now and after the next start."""
    return bool(values[0]) if values else None


def _slowdowns(bits: int | None) -> list[str]:
    return sorted({why for bit, why in SLOWDOWNS.items() if (bits or 0) & bit})


def _processes(nvml: Any, processes: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "pid": process.pid,
            "name": _program(_try(nvml.nvmlSystemGetProcessName, process.pid)),
            "memory_bytes": process.usedGpuMemory,
        }
        for process in processes
    ]


def _program(command: str | None) -> str | None:
    """The program's name alone: what follows it may hold secrets."""
    words = (command or "").split()
    return words[0].rpartition("/")[2] if words else None


def _path(nvml: Any, first: Any, second: Any) -> str:
    by_link = _try(nvml.nvmlDeviceGetP2PStatus, first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if by_link == nvml.NVML_P2P_STATUS_OK:
        return "NVLink"
    level = _try(nvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
    return PATHS.get(level, "unknown") if level is not None else "unknown"
