"""The clocks of a GPU are held down by heat, a power brake or a fault of the hardware."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "gpu_held_back"
NORMAL = ("power cap",)
"""Under full load every large GPU runs at its cap."""


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The driver's own reasons."""
    held = [gpu for gpu in case.gpus if set(gpu.slowdowns) - set(NORMAL)]
    if held:
        yield Finding(
            NAME,
            "warning",
            f"{named(held)} cannot run at full clocks",
            tuple(
                f"GPU {gpu.index}: {', '.join(gpu.slowdowns)}, {gpu.temperature_c} °C, "
                f"{gpu.clock_mhz} of {gpu.clock_max_mhz} MHz"
                for gpu in held
            ),
            None,
            "tell the operators: cooling or power of this node needs a look; use another one",
        )


RULE = Rule(NAME, check)
