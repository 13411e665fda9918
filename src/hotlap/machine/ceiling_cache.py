"""Ceilings that were measured, kept for the next time: one file a machine, one a kind of GPU.

They live in $HOTLAP_CACHE_DIR, else below $XDG_CACHE_HOME or ~/.cache. A machine is the same while
its name, its GPUs, its allocated CPUs, driver and torch are. Where nothing can be written, nothing
is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hotlap.errors import RecordError
from hotlap.records.ceilings import Ceilings
from hotlap.records.codec import from_json, read_json, write_json
from hotlap.records.software import Software
from hotlap.records.system import System

VERSION = 1
"""Of how ceilings are measured: raised when old figures no longer compare."""
RATES_OF_A_CHIP = ("matmul bf16", "matmul fp16")


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """The matrix rate of a kind of GPU, for MFU where no data sheet is known."""

    device_name: str
    memory_bytes: int
    dense_16bit_flops_per_s: float


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where ceilings are kept; None where there is no home."""
    if environ.get("HOTLAP_CACHE_DIR"):
        return Path(environ["HOTLAP_CACHE_DIR"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "hotlap"
    home = environ.get("HOME")
    return Path(home) / ".cache" / "hotlap" if home else None


def machine_key(system: System, software: Software) -> str:
    """The same while nothing changed that could change a ceiling."""
    torch = software.torch
    facts = {
        "version": VERSION,
        "host": system.hostname,
        "gpus": [(gpu.uuid, gpu.power_limit_w) for gpu in system.gpus if gpu.is_visible],
        "cpu": (system.cpu.model, system.cpu.n_allocated),
        "driver": software.driver,
        "torch": (torch.version, torch.cuda, torch.n_threads, torch.products) if torch else None,
        "image": software.packages.get("pillow"),
        "isa": [software.environment.get(n) for n in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


def load(folder: Path | None, key: str, is_quick: bool) -> Ceilings | None:
    """What was measured before; of a quick measurement only where a quick one is wanted."""
    if folder is None:
        return None
    try:
        found = from_json(Ceilings, read_json(folder / f"ceilings-{key}.json"), "")
    except RecordError:
        return None
    return replace(found, is_cached=True) if is_quick or not found.is_quick else None


def newest(folder: Path | None) -> Ceilings | None:
    """What was measured last, here or where the home folder is shared."""
    files = sorted(folder.glob("ceilings-*.json"), key=_age) if folder else []
    for path in reversed(files):
        try:
            return replace(from_json(Ceilings, read_json(path), ""), is_cached=True)
        except RecordError:
            continue
    return None


def _age(path: Path) -> float:
    return path.stat().st_mtime


def store(folder: Path | None, key: str, ceilings: Ceilings, software: Software) -> str:
    """Keep them; why that was not possible, or nothing."""
    if folder is None:
        return "there is no home folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"ceilings-{key}.json", ceilings)
        chip = _chip(ceilings, software)
        if chip is not None:
            write_json(_chip_path(folder, chip.device_name, chip.memory_bytes), chip)
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror})"
    return ""


def load_chip(folder: Path | None, name: str, memory_bytes: int) -> MeasuredChip | None:
    """The measured rate of a kind of GPU."""
    if folder is None:
        return None
    try:
        return from_json(MeasuredChip, read_json(_chip_path(folder, name, memory_bytes)), "")
    except RecordError:
        return None


def _chip(ceilings: Ceilings, software: Software) -> MeasuredChip | None:
    for device in software.torch.devices[:1] if software.torch else ():
        for one in ceilings.rates:
            if one.name in RATES_OF_A_CHIP and one.device == device.name and one.value:
                return MeasuredChip(device.name, device.memory_bytes, one.value)
    return None


def _chip_path(folder: Path, name: str, memory_bytes: int) -> Path:
    """By name and memory as torch shows them, which the chronometer sees as well."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return folder / f"chip-{slug}-{memory_bytes >> 20}.json"
