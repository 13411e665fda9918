"""The GPUs: from NVML, else from nvidia-smi, else from what torch shows, else none."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotlap.machine.child import ask
from hotlap.machine.files import read_word
from hotlap.records.codec import from_json
from hotlap.records.software import TorchDevice
from hotlap.records.system import Gpu, GpuPair

TIMEOUT_S = 30.0
VISIBLE = "CUDA_VISIBLE_DEVICES"

# What is asked of nvidia-smi, and the field of a Gpu that it fills.
_QUERY = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "memory.total": "memory_bytes",
    "memory.used": "memory_used_bytes",
    "compute_cap": "compute_capability",
    "clocks.sm": "clock_mhz",
    "clocks.max.sm": "clock_max_mhz",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "power.default_limit": "power_default_w",
    "temperature.gpu": "temperature_c",
    "ecc.mode.current": "is_ecc",
    "mig.mode.current": "is_mig",
    "persistence_mode": "is_persistent",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
    "driver_version": "driver",
}


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a node, and who told of them."""

    gpus: tuple[Gpu, ...]
    pairs: tuple[GpuPair, ...]
    told_by: str
    driver: str | None = None
    driver_cuda: str | None = None


def find_gpus(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Gpus:
    """The GPUs of this node as the driver shows them."""
    found, why_no_nvml = _by_nvml(root, environ)
    if found is None:
        found, why_no_smi = _by_smi(environ)
        if found is None:
            return Gpus((), (), f"none: {why_no_nvml}; {why_no_smi}")
    visible = visible_gpus(found.gpus, environ.get(VISIBLE))
    gpus = tuple(replace(gpu, is_visible=gpu.index in visible) for gpu in found.gpus)
    return replace(found, gpus=gpus)


def with_torch(found: Gpus, devices: Iterable[TorchDevice]) -> Gpus:
    """The GPUs with what only torch knows; torch's own list where the driver told of none."""
    by_uuid = {_bare(device.uuid): device for device in devices if device.uuid}
    if not found.gpus:
        gpus = tuple(_of_torch(device) for device in devices)
        return replace(found, gpus=gpus, told_by="torch") if gpus else found
    filled = []
    for gpu in found.gpus:
        device = by_uuid.get(_bare(gpu.uuid))
        filled.append(replace(gpu, n_sms=device.n_sms) if device else gpu)
    return replace(found, gpus=tuple(filled))


def _of_torch(device: TorchDevice) -> Gpu:
    return Gpu(
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        memory_bytes=device.memory_bytes,
        n_sms=device.n_sms,
        compute_capability=device.compute_capability,
    )


def _bare(uuid: str | None) -> str:
    """NVML writes 'GPU-…', torch leaves that out."""
    return (uuid or "").removeprefix("GPU-")


def visible_gpus(gpus: Sequence[Gpu], value: str | None) -> set[int]:
    """The indices that a value of CUDA_VISIBLE_DEVICES leaves; it ends at the first bad word."""
    if value is None:
        return {gpu.index for gpu in gpus}
    visible: set[int] = set()
    for word in (text.strip() for text in value.split(",")):
        matches = [
            gpu.index
            for gpu in gpus
            if word == str(gpu.index) or (word and (gpu.uuid or "").startswith(word))
        ]
        # A partition of a GPU is named by an UUID of its own: which GPU's is not known here.
        if word.startswith("MIG-"):
            matches = [gpu.index for gpu in gpus if gpu.is_mig]
        if not matches:
            break
        visible.update(matches)
    return visible


def _by_nvml(root: Path, environ: Mapping[str, str]) -> tuple[Gpus | None, str]:
    answer = ask("nvml", timeout_s=TIMEOUT_S, environ=environ)
    facts: dict[str, Any] = {}
    gpus, pairs = [], []
    for one in answer.told:
        if "gpu" in one:
            numa_node = _numa_node(root, one["gpu"].get("bus_id"))
            gpus.append(from_json(Gpu, {**one["gpu"], "numa_node": numa_node}, "gpu"))
        elif "pair" in one:
            pairs.append(from_json(GpuPair, one["pair"], "pair"))
        else:
            facts = one
    if not facts or (answer.trouble and not gpus):
        return None, f"NVML: {_shortened(answer.trouble)}"
    told_by = "NVML" if gpus else "none: NVML knows of no GPU"
    if answer.trouble:
        told_by += f", and did not come to its end: {answer.trouble}"
    return Gpus(tuple(gpus), tuple(pairs), told_by, facts["driver"], facts["driver_cuda"]), ""


def _shortened(trouble: str) -> str:
    """The message of an exception without its class."""
    name, separator, message = trouble.partition(": ")
    return message if separator and " " not in name else trouble


def _numa_node(root: Path, bus_id: str | None) -> int | None:
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")  # NVML writes eight digits, Linux four
    text = read_word(root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node")
    return int(text) if text is not None and text.isdigit() else None


def _by_smi(environ: Mapping[str, str]) -> tuple[Gpus | None, str]:
    words = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(environ)
        )
    except FileNotFoundError:
        return None, "no nvidia-smi on the PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"nvidia-smi: {type(error).__name__}"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return None, f"nvidia-smi: {lines[0][:120] if lines else 'it failed'}"
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
    gpus = [parse_smi(row) for row in rows]
    driver = rows[0][-1].strip() if rows else None
    return Gpus(tuple(gpus), (), "nvidia-smi", driver), ""


def parse_smi(row: Sequence[str]) -> Gpu:
    """One line of nvidia-smi's answer."""
    facts: dict[str, Any] = {}
    for name, text in zip(_QUERY.values(), row, strict=False):
        if name != "driver":
            facts[name] = _smi_value(name, text.strip())
    return from_json(Gpu, facts, "gpu")


def _smi_value(name: str, text: str) -> Any:
    if name in ("name", "uuid", "compute_capability"):
        return text if name == "name" or not text.startswith("[") else None
    if name.startswith("is_"):
        return {"Enabled": True, "Disabled": False}.get(text)
    try:
        number = float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None
    if name.endswith("_bytes"):
        return int(number) * 2**20
    return number if name.endswith("_w") else int(number)
