"""What rules ask about the model."""

from __future__ import annotations

from typing import Any

from hotlap.doctor.cure import BY_NAME
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training

LEAST_VOCABULARY = 1000
"""An embedding of fewer entries is no vocabulary, or does not matter."""


def vocabularies(training: Training) -> set[int]:
    """Sizes of the large embeddings: the layer that gives the logits has them too."""
    sizes = [o["sizes"]["num_embeddings"] for o in training.habits.layers if _is_embedding(o)]
    return {size for size in sizes if size >= LEAST_VOCABULARY}


def _is_embedding(layer: dict[str, Any]) -> bool:
    return bool(layer["kind"] == "Embedding")


def describe_layer(layer: dict[str, Any]) -> str:
    """A layer with its sizes."""
    sizes = ", ".join(f"{name}={value}" for name, value in layer["sizes"].items())
    return f"'{layer['name']}': {layer['kind']}({sizes})"


def has_modes(training: Training) -> bool:
    """Whether training and evaluation mode differ for the model."""
    kinds = {kind for one in training.workload.models for kind in one.facts.get("kinds", {})}
    return any("Dropout" in kind or "BatchNorm" in kind for kind in kinds)


def is_channels_first(training: Training, limits: Thresholds) -> bool:
    """Whether a step is spent in convolutions in torch's default memory order."""
    n_convolutions = training.workload.n_modules("Conv2d", "ConvTranspose2d")
    share = training.share("forward", "backward")
    if n_convolutions < limits.least_convolutions or share < limits.least_compute_share:
        return False
    return BY_NAME["channels_last"].applies(training.workload).yes
