"""The measured ceilings of this machine, each beside what its vendor states.

Children measure; one that dies costs its own measurement and no other. Nothing is measured that is
known to end a process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from hotlap.machine import ceiling_cache
from hotlap.machine.child import ask
from hotlap.machine.chips import find_chip
from hotlap.machine.clock import now_s
from hotlap.machine.known_bad import parse_version
from hotlap.records.ceilings import Ceiling, Ceilings, Unit
from hotlap.records.software import Software
from hotlap.records.system import Gpu, System

FULL_S, QUICK_S = 55.0, 9.0
"""For the devices; what starts and ends around it comes to a minute and to ten seconds."""
JPEG = "JPEG decode, one core"
PINNED, PAGEABLE, BACK = (
    "host to device, pinned",
    "host to device, pageable",
    "device to host, pinned",
)
SMALL_STEP = "step of a small model"
IN_SECONDS = ("launch latency", "smallest operation", SMALL_STEP)
PRODUCTS = {"matmul fp32": "float32", "matmul bf16": "bfloat16", "matmul fp16": "float16"}
ON_CPU = (*PRODUCTS, "memory copy", "smallest operation")
ON_GPU = (
    *("matmul bf16", "matmul tf32", "matmul fp32", "matmul fp16", "matmul fp8"),
    *("memory copy", PINNED, PAGEABLE, BACK, "launch latency", SMALL_STEP),
)
ON_OTHER_GPUS = ("matmul bf16", "memory copy")
"""Enough to find the one that is slower than the others."""

PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""By generation, one direction; PCI Express base specification 6.0, after encoding."""
IGNORED_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING")
"""A ceiling is what the machine can do, and not what the environment leaves of it."""
SLACK_S = 15.0
"""A child may take longer than it was given: a slow import, a last block."""
N_TRIES = 3
TOO_LATE = "no time was left"


@dataclass(frozen=True, slots=True)
class Device:
    """One device to measure, as torch names it."""

    torch_name: str
    name: str
    gpu: Gpu | None
    wanted: tuple[str, ...]


def find_ceilings(
    system: System,
    software: Software,
    is_quick: bool,
    is_fresh: bool,
    progress: Callable[[str], None],
) -> tuple[Ceilings, str]:
    """What was measured before, where nothing has changed since; else measured now and kept.

    And why it could not be kept, if so. What was measured while the machine was busy counts until
    it is not. Ranks are measured elsewhere.
    """
    folder, key = ceiling_cache.cache_folder(), ceiling_cache.machine_key(system, software)
    kept = None if is_fresh else ceiling_cache.load(folder, key, is_quick)
    is_busy = _is_busy(system)
    if kept is not None and (is_busy or not kept.is_busy):
        return kept, ""
    begin = now_s()
    rates = measure_ceilings(system, software, QUICK_S if is_quick else FULL_S, progress)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    found = Ceilings(rates, (), "", now, False, is_quick, now_s() - begin, is_busy)
    return found, ceiling_cache.store(folder, key, found, software)


def _is_busy(system: System) -> bool:
    """Whether more processes wanted to run, in the last minute, than there are CPUs."""
    cpu = system.cpu
    return cpu.load_1min is not None and cpu.n_cpus is not None and cpu.load_1min > cpu.n_cpus


def measure_ceilings(
    system: System,
    software: Software,
    budget_s: float,
    progress: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Ceiling, ...]:
    """All rates of this machine, within the time."""
    begin = now_s()
    environ = {key: value for key, value in environ.items() if key not in IGNORED_VARIABLES}
    devices = list_devices(system, software, with_cpu=budget_s > QUICK_S)
    n_all = 1 + sum(len(device.wanted) for device in devices)
    rates: list[Ceiling] = []
    for i, device in enumerate(devices):
        progress(f"measuring {device.name} ({budget_s - (now_s() - begin):.0f} s left)")
        n_left = 1 + sum(len(later.wanted) for later in devices[i:])
        # The image decoder comes last and is served first: it needs one share and no more.
        left_s = budget_s - (now_s() - begin) - budget_s / n_all
        share_s = left_s * len(device.wanted) / max(1, n_left - 1)
        rates += _measure_device(device, software, share_s, environ)
    rates.append(_jpeg(min(2.0, budget_s / n_all), environ))
    return tuple(rates)


def list_devices(system: System, software: Software, with_cpu: bool = True) -> list[Device]:
    """The first GPU in full, the others in short, and the CPU, in full where there is no GPU.

    Beside GPUs it can be left out: another start of torch takes much of a short time.
    """
    torch = software.torch
    if torch is None:
        return []
    gpus = [gpu for gpu in system.gpus if gpu.is_visible]
    devices: list[Device] = []
    for shown in torch.devices:
        uuid = (shown.uuid or "").removeprefix("GPU-")
        gpu = next((g for g in gpus if uuid and uuid in (g.uuid or "")), None)
        is_first = not devices
        name = shown.name if is_first else f"{shown.name} #{shown.index}"
        wanted = ON_GPU if is_first else ON_OTHER_GPUS
        devices.append(Device(f"cuda:{shown.index}", name, gpu, wanted))
    if devices and not with_cpu:
        return devices
    return [*devices, Device("cpu", "cpu", None, ON_CPU if not devices else ON_CPU[:1])]


def _measure_device(
    device: Device, software: Software, seconds: float, environ: Mapping[str, str]
) -> list[Ceiling]:
    """Try until everything was measured or ended its process."""
    deadline = now_s() + seconds
    found: dict[str, tuple[float | None, str]] = {}
    if device.gpu is None and device.torch_name == "cpu":
        found = _known_to_die(software)
    for _ in range(N_TRIES):
        left = [name for name in device.wanted if name not in found]
        left_s = deadline - now_s()
        if not left or left_s <= 0:
            break
        arguments = [device.torch_name, f"{left_s:.2f}", *left]
        answer = ask("torch_ceilings", arguments, left_s + SLACK_S, environ)
        for one in answer.told:
            if "begin" in one:
                found[one["begin"]] = (None, answer.trouble or "it told nothing")
            if "done" in one:
                found[one["done"]] = (one["value"], one["note"])
        if not answer.trouble:
            break
        if not answer.told:
            found |= dict.fromkeys(left, (None, answer.trouble))
    return [_ceiling(name, device, *found.get(name, (None, TOO_LATE))) for name in device.wanted]


def _known_to_die(software: Software) -> dict[str, tuple[float | None, str]]:
    products = software.torch.products if software.torch else {}
    return {
        name: (None, f"not tried: {products[dtype]}")
        for name, dtype in PRODUCTS.items()
        if products.get(dtype, "usable") != "usable"
    }


def _jpeg(seconds: float, environ: Mapping[str, str]) -> Ceiling:
    answer = ask("jpeg", [f"{max(0.3, seconds):.2f}"], seconds + 20, environ)
    value, note = None, answer.trouble
    for one in answer.told:
        value, note = one["value"], one["note"]
    return Ceiling(JPEG, "cpu", "images/s", value, None, None, note)


def _ceiling(name: str, device: Device, value: float | None, note: str) -> Ceiling:
    sheet = stated(name, device.gpu) if device.gpu else None
    ratio = value / sheet if value is not None and sheet else None
    return Ceiling(name, device.name, _unit(name), value, sheet, ratio, note)


def _unit(name: str) -> Unit:
    if name.startswith("matmul"):
        return "FLOP/s"
    return "s" if name in IN_SECONDS else "B/s"


def stated(name: str, gpu: Gpu) -> float | None:
    """What the vendor, or the standard of the bus, states for a GPU; None where neither does."""
    if name in (PINNED, PAGEABLE, BACK):
        lane = PCIE_LANE_BYTES_PER_S.get(gpu.pcie_generation_max or 0)
        return lane * gpu.pcie_width_max if lane and gpu.pcie_width_max else None
    chip = find_chip(gpu.name, gpu.memory_bytes)
    if chip is None or gpu.is_mig:
        return None
    if name == "matmul bf16" and parse_version(gpu.compute_capability) < (8, 0):
        return None  # the 16-bit rate of these is fp16's alone
    return {
        "matmul fp32": chip.fp32_flops_per_s,
        "matmul tf32": chip.tf32_flops_per_s,
        "matmul fp16": chip.dense_16bit_flops_per_s,
        "matmul bf16": chip.dense_16bit_flops_per_s,
        "matmul fp8": chip.fp8_flops_per_s,
        "memory copy": chip.bandwidth_bytes_per_s,
    }.get(name)
