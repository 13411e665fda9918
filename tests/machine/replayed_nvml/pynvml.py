"""Stands in for nvidia-ml-py where there is no GPU: two H200s, as their driver answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = 36, 1
NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0
nvmlMemory_v2 = 33554472


class NVMLError(Exception):
    """Every answer that is none."""


def nvmlInit() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "580.95.05"


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 13000


def nvmlSystemGetProcessName(pid: int) -> bytes:
    return b"/usr/bin/python3 train.py --token hunter2"


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


ANSWERS: dict[str, Any] = {
    "Name": "NVIDIA H200",
    "MemoryInfo": SimpleNamespace(total=143771 << 20, used=0),
    "Attributes": SimpleNamespace(multiprocessorCount=132),
    "CudaComputeCapability": (9, 0),
    "ClockInfo": 345,
    "MaxClockInfo": 1980,
    "PowerUsage": 76490,
    "EnforcedPowerLimit": 700000,
    "PowerManagementDefaultLimit": 700000,
    "Temperature": 31,
    "CurrentClocksThrottleReasons": 4 | 64,
    "EccMode": [1, 1],
    "TotalEccErrors": 0,
    "MigMode": [0, 0],
    "PersistenceMode": 1,
    "CurrPcieLinkGeneration": 1,
    "MaxPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "PciInfo": SimpleNamespace(busId="00000000:19:00.0"),
    "ComputeRunningProcesses": [SimpleNamespace(pid=4711, usedGpuMemory=None)],
}
NOT_ON_THE_SECOND = ("MigMode", "Temperature", "ComputeRunningProcesses")


def _answer(name: str) -> Any:
    def call(handle: int, *arguments: Any) -> Any:
        if handle == 1 and name in NOT_ON_THE_SECOND:
            raise NVMLError("Not Supported")
        return ANSWERS[name]

    return call


for _name in ANSWERS:
    globals()[f"nvmlDeviceGet{_name}"] = _answer(_name)


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle}1111111-2222-3333-4444-555555555555"


def nvmlDeviceGetNvLinkState(handle: int, link: int) -> int:
    if link >= 18:
        raise NVMLError("Invalid Argument")
    return 1


def nvmlDeviceGetP2PStatus(first: int, second: int, index: int) -> int:
    return 0
