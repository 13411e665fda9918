"""The layers of the model: their kinds and sizes, as rules about shapes need them."""

from __future__ import annotations

import itertools
from typing import Any

from hotlap.doctor.inside.watch import Watch

MAX_LAYERS = 2000
SIZES = {
    "Linear": ("in_features", "out_features"),
    "Conv1d": ("in_channels", "out_channels", "groups"),
    "Conv2d": ("in_channels", "out_channels", "groups"),
    "Conv3d": ("in_channels", "out_channels", "groups"),
    "Embedding": ("num_embeddings", "embedding_dim"),
    "RNN": ("input_size", "hidden_size"),
    "LSTM": ("input_size", "hidden_size"),
    "GRU": ("input_size", "hidden_size"),
    "MultiheadAttention": ("embed_dim", "num_heads"),
}
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm2d")


def install(watch: Watch) -> None:
    """Look at each model once, before its first training call."""
    found: list[dict[str, Any]] = []
    watch.facts["layers"] = lambda: found
    before = watch.session.new_module

    def new_module(module: Any, args: Any, kwargs: Any) -> None:
        if before is not None:
            before(module, args, kwargs)
        if len(found) < MAX_LAYERS:
            watch.try_to(found.extend, _layers(module))

    watch.session.new_module = new_module


def _layers(model: Any) -> list[dict[str, Any]]:
    layers = []
    for name, part in model.named_modules():
        kind = type(part).__name__
        if kind in SIZES:
            sizes = {size: int(getattr(part, size)) for size in SIZES[kind]}
            facts = {"name": name, "kind": kind, "sizes": sizes}
            if kind.startswith("Conv"):
                facts["has_bias"] = part.bias is not None
            layers.append(facts)
    _mark_normed(model, {layer["name"]: layer for layer in layers})
    return layers[:MAX_LAYERS]


def _mark_normed(model: Any, layers: dict[str, dict[str, Any]]) -> None:
    """Convolutions that a norm of as many channels is registered right behind."""
    for name, parent in model.named_modules():
        children = list(parent.named_children())
        for (own, part), (_, after) in itertools.pairwise(children):
            layer = layers.get(f"{name}.{own}" if name else own)
            if layer is None or type(after).__name__ not in NORMS:
                continue
            layer["is_normed"] = after.num_features == getattr(part, "out_channels", None)
