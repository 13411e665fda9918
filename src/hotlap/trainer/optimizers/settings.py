"""Settings of the optimizer, checked where they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from hotlap.errors import UsageError

OptimizerName = Literal["sgd", "adamw", "lars", "lamb", "lion", "muon"]
HAS_FUSED: tuple[OptimizerName, ...] = ("sgd", "adamw")
HAS_NESTEROV: tuple[OptimizerName, ...] = ("sgd", "muon")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Which optimizer, with what numbers; each takes those that its algorithm has."""

    name: OptimizerName = "sgd"
    lr: float = 0.1
    """The peak of the schedule."""
    momentum: float = 0.9
    """Of sgd, lars and muon (published with 0.95)."""
    nesterov: bool = False
    """Of sgd and muon (published with it)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of adamw, lamb, lion (published with 0.9 and 0.99) and what muon leaves to AdamW."""
    eps: float = 1e-8
    """Of adamw, lamb (published with 1e-6) and what muon leaves to AdamW."""
    weight_decay: float = 0.0
    """A part of the gradient in sgd and lars; apart from it in all others."""
    decay_norms: bool = False
    """Norms and biases, which are the parameters with fewer than 2 dimensions, decay too."""
    trust_coefficient: float = 0.001
    """Of lars: the change of a layer in one step relative to its weights, at a rate of 1."""
    fused: bool | None = None
    """One kernel for all parameters, of sgd and adamw; None takes it where torch has it."""

    def __post_init__(self) -> None:
        _check_names(self)
        _check_numbers(self)


def _check_names(settings: OptimizerSettings) -> None:
    name, known = settings.name, get_args(OptimizerName)
    if name not in known:
        raise UsageError(f"optimizer.name is {name!r}; there are {', '.join(known)}")
    if settings.nesterov and name not in HAS_NESTEROV:
        raise UsageError(
            f"optimizer.nesterov is true; of the optimizers {' and '.join(HAS_NESTEROV)} have it, "
            f"{name} does not"
        )
    if settings.nesterov and not settings.momentum:
        raise UsageError("optimizer.momentum is 0; with optimizer.nesterov it has to be above 0")
    if settings.fused and name not in HAS_FUSED:
        raise UsageError(
            f"optimizer.fused is true; of the optimizers {' and '.join(HAS_FUSED)} can be fused, "
            f"{name} cannot"
        )


def _check_numbers(settings: OptimizerSettings) -> None:
    if len(settings.betas) != 2:
        raise UsageError(f"optimizer.betas has {len(settings.betas)} numbers; it has to have 2")
    for key in ("lr", "weight_decay"):
        found = getattr(settings, key)
        if not 0 <= found < math.inf:
            raise UsageError(f"optimizer.{key} is {found}; it has to be a number of at least 0")
    for key in ("eps", "trust_coefficient"):
        found = getattr(settings, key)
        if not 0 < found < math.inf:
            raise UsageError(f"optimizer.{key} is {found}; it has to be a number above 0")
    shares = {"momentum": (settings.momentum,), "betas": settings.betas}
    for key, found in shares.items():
        if not all(0 <= one < 1 for one in found):
            shown = ", ".join(map(str, found))
            raise UsageError(f"optimizer.{key} is {shown}; it has to be at least 0 and below 1")
