"""The 16-bit matrix rate that MFU is counted against: the data sheet's, else the measured one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotlap.machine.ceiling_cache import cache_folder, load_chip
from hotlap.machine.chips import find_chip


@dataclass(frozen=True, slots=True)
class Peak:
    flops_per_s: float
    is_measured: bool
    """By `hotlap doctor`, on a GPU of the same name and memory; else as its vendor states."""


def find_peak(
    device_name: str | None, memory_bytes: int | None, folder: Path | None = None
) -> Peak | None:
    """The peak of a device as torch shows it; None where it is neither stated nor measured."""
    if not device_name:
        return None
    chip = find_chip(device_name, memory_bytes)
    if chip is not None and chip.dense_16bit_flops_per_s is not None:
        return Peak(chip.dense_16bit_flops_per_s, False)
    if memory_bytes is None:
        return None
    measured = load_chip(folder or cache_folder(), device_name, memory_bytes)
    return Peak(measured.dense_16bit_flops_per_s, True) if measured else None
