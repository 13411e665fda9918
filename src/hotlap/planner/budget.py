"""What a training costs, and what a budget buys.

Compute-optimal sizes follow Hoffmann et al. 2022 (https://arxiv.org/abs/2203.15556) with the
constants that Besiroglu et al. 2024 (https://arxiv.org/abs/2404.10102) fitted anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

from hotlap.errors import UsageError

LOSS_E, LOSS_A, LOSS_B = 1.817, 482.0, 2085.0
ALPHA, BETA = 0.348, 0.366
SECONDS_A_DAY = 86400.0
UNITS = {"gpu-hours": "gpu_hours", "days": "days", "kwh": "kwh", "mwh": "mwh"}


@dataclass(frozen=True, slots=True)
class Money:
    """What turns hours into energy, CO2 and price; None where nobody said."""

    goodput: float = 1.0
    """The share of the time that is trained in: without restarts, checkpoints, waiting."""
    watts: float | None = None
    """Of a GPU with its share of the node; None takes the chip's most."""
    pue: float = 1.0
    """Of the centre: what it draws for each watt of the computers."""
    co2_g_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    charge_per_gpu_hour: float | None = None
    """What a cluster counts, in its own unit."""
    charge_unit: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.goodput <= 1:
            raise UsageError(f"--goodput is {self.goodput:g}; it has to be above 0 and at most 1")
        if not 1 <= self.pue < inf:
            raise UsageError(f"--pue is {self.pue:g}; it has to be at least 1")
        for option, value in (
            ("--watts", self.watts),
            ("--co2", self.co2_g_per_kwh),
            ("--price", self.price_per_gpu_hour),
        ):
            if value is not None and not 0 <= value < inf:
                raise UsageError(f"{option} is {value:g}; it has to be a number, at least 0")


@dataclass(frozen=True, slots=True)
class ComputeOptimal:
    """The model that a number of FLOPs trains to the least loss."""

    flops: float
    n_params: float
    n_tokens: float
    loss: float


def compute_optimal(flops: float) -> ComputeOptimal:
    """Minimise E + A/N^alpha + B/D^beta where 6·N·D is the budget."""
    scale = (ALPHA * LOSS_A / (BETA * LOSS_B)) ** (1 / (ALPHA + BETA))
    n_params = scale * (flops / 6) ** (BETA / (ALPHA + BETA))
    n_tokens = flops / 6 / n_params
    return ComputeOptimal(flops, n_params, n_tokens, loss(n_params, n_tokens))


def loss(n_params: float, n_tokens: float) -> float:
    """Of a language model of this size after so many tokens, in nats."""
    return float(LOSS_E + LOSS_A / n_params**ALPHA + LOSS_B / n_tokens**BETA)


def budget_gpu_hours(text: str, n_gpus: int, watts: float | None, pue: float) -> float:
    """`10000gpu-hours`, `30days` or `5000kWh` as GPU-hours."""
    match = re.fullmatch(r"([0-9.eE+]+)\s*([a-zA-Z-]+)", text.strip())
    unit = UNITS.get(match[2].lower()) if match else None
    try:
        value = float(match[1]) if match else 0.0
    except ValueError:
        value = 0.0
    if unit is None or value <= 0:
        raise UsageError(
            f"--budget is '{text}'; it is written 10000gpu-hours, 30days, 5000kWh or 5MWh"
        )
    if unit == "gpu_hours":
        return value
    if unit == "days":
        return value * 24 * n_gpus
    if watts is None:
        raise UsageError("--budget in energy needs the power of a GPU: give --watts")
    return value * (1000 if unit == "mwh" else 1) * 1000 / (watts * pue)
