"""What a recipe says about the model: a reference model by name, or a factory of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Each model takes some of these; `build_model` refuses one that the model does not take."""

    name: str = "resnet50"
    """One of MODELS."""
    n_classes: int = 1000
    """Of images."""
    n_channels: int = 3
    """Of images; 1 for grey ones."""
    image_size: int = 224
    """Pixels, of both sides. A ViT has positions for it and interpolates them for other sizes."""
    small_stem: bool = False
    """ResNet: the stem keeps the resolution, for images of about 32 pixels."""
    zero_init_residual: bool = False
    """ResNet: each block starts by passing its input on."""
    vocab_size: int = 50257
    """GPT: how many tokens there are."""
    vocab_multiple: int = 1
    """GPT: the vocabulary is padded to a multiple of this; 64 or 128 suits tensor cores."""
    context: int = 1024
    """GPT: the longest sequence, in tokens."""
    n_layers: int = 0
    """Of the model `gpt`, which has no size of its own; 0 elsewhere. Likewise the next two."""
    n_heads: int = 0
    width: int = 0
    tied: bool = True
    """GPT: the output layer is the token embedding; false for a pipeline."""
    dropout: float = 0.0
    """GPT: of embeddings, attention and residual branches."""
    factory: str = ""
    """In place of a name: 'package.module:factory', a callable that returns an `nn.Module`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """What the factory is called with."""

    def __post_init__(self) -> None:
        at_least_1 = ("n_classes", "n_channels", "image_size", "vocab_size", "vocab_multiple")
        for name in (*at_least_1, "context"):
            _check_least(name, getattr(self, name), 1)
        for name in ("n_layers", "n_heads", "width"):
            _check_least(name, getattr(self, name), 0)
        if not 0 <= self.dropout < 1:
            raise UsageError(
                f"model.dropout is {self.dropout}; it has to be at least 0 and less than 1"
            )


def _check_least(name: str, found: int, least: int) -> None:
    if found < least:
        raise UsageError(f"model.{name} is {found}; it has to be at least {least}")
