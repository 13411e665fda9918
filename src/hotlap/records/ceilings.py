"""Ceilings: what this machine can really do, measured, each beside its data sheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["FLOP/s", "B/s", "s", "images/s"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    name: str
    """Such as 'matmul bf16', 'memory copy', 'host to device, pinned'."""
    device: str
    """'cpu' or the name of the GPU."""
    unit: Unit
    value: float | None
    sheet: float | None
    """What the vendor states; None where no document does."""
    ratio: float | None
    """Measured over stated."""
    note: str
    """How it was measured, or why it was not."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One operation between ranks at one size."""

    operation: str
    n_bytes: int
    world_size: int
    device: str
    median_s: float | None
    """None where a rank got a wrong result."""
    bus_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Ceilings:
    rates: tuple[Ceiling, ...]
    exchanges: tuple[Exchange, ...]
    exchanges_note: str
    """Between which ranks, or why there are none."""
    measured: str
    """When, in UTC."""
    is_cached: bool
    is_quick: bool
    took_s: float
    is_busy: bool = False
    """Whether more processes wanted to run than there are CPUs: rates may be too low."""

    def rate(self, name: str, device: str | None = None) -> float | None:
        """The measured value of a ceiling, of the first device if none is named."""
        named = (one for one in self.rates if one.name == name)
        return next((one.value for one in named if device in (None, one.device)), None)
