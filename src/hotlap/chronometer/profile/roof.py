"""The ceilings that shares of a roofline are against.

What `hotlap doctor` measured on this machine; for a device that it did not, the data sheet.
"""

from __future__ import annotations

from dataclasses import replace

from hotlap.chronometer.profile.sums import Roof
from hotlap.machine.ceiling_cache import cache_folder, load, machine_key
from hotlap.machine.chips import find_chip
from hotlap.records.ceilings import Ceilings

CEILING_NAMES = {
    "float32": "matmul fp32",
    "tf32": "matmul tf32",
    "bfloat16": "matmul bf16",
    "float16": "matmul fp16",
    "float8": "matmul fp8",
}


class Roofs:
    """Looks up ceilings once, and only where some were measured: a probe takes seconds."""

    def __init__(self) -> None:
        self._ceilings: Ceilings | None = None
        self._is_looked_up = False

    def __call__(self, device: str, dtypes: dict[str, float]) -> Roof | None:
        """The roof of a device for products of these types, the one that takes the most first."""
        main, *others = dtypes or ("float32",)
        roof = roof_of(device, main, self._measured())
        if roof is None:
            return None
        found = {dtype: roof_of(device, dtype, self._measured()) for dtype in others}
        return replace(roof, others={dtype: r.flops_per_s for dtype, r in found.items() if r})

    def _measured(self) -> Ceilings | None:
        if not self._is_looked_up:
            self._is_looked_up = True
            folder = cache_folder()
            if folder is not None and any(folder.glob("ceilings-*.json")):
                self._ceilings = self._look_up()
        return self._ceilings

    @staticmethod
    def _look_up() -> Ceilings | None:
        from pathlib import Path

        from hotlap.machine.probe import Prober

        system, software, _ = Prober(progress=lambda text: None).probe(Path(), None)
        return load(cache_folder(), machine_key(system, software), is_quick=True)


def roof_of(device: str, dtype: str, ceilings: Ceilings | None) -> Roof | None:
    """The roof for products of a type: as measured, or else as the data sheet says."""
    moved = ceilings.rate("memory copy", device) if ceilings is not None else None
    if ceilings is not None and moved is not None:
        flops = ceilings.rate(CEILING_NAMES.get(dtype, ""), device)
        return Roof(flops, moved, f"what `hotlap doctor` measured ({dtype}, memory copy)")
    chip = find_chip(device, None)
    if chip is None:
        return None
    rates = {
        "float32": chip.fp32_flops_per_s,
        "tf32": chip.tf32_flops_per_s,
        "float8": chip.fp8_flops_per_s,
    }
    return Roof(
        rates.get(dtype, chip.dense_16bit_flops_per_s),
        chip.bandwidth_bytes_per_s,
        f"the data sheet ({dtype}); `hotlap doctor` measures what there really is",
    )
