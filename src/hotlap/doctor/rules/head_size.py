"""Attention heads, or sequences, of sizes that fused attention kernels do not take well."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.model import describe_layer
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "head_size"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Sizes of heads that 8 does not divide."""
    if not training.is_on_gpu:
        return
    odd = [
        layer
        for layer in training.habits.layers
        if layer["kind"] == "MultiheadAttention"
        and (layer["sizes"]["embed_dim"] // layer["sizes"]["num_heads"]) % limits.tile
    ]
    if not odd:
        return
    yield Finding(
        NAME,
        "advice",
        f"{len(odd)} attention layers have heads whose size {limits.tile} does not divide",
        tuple(describe_layer(layer) for layer in odd[:3]),
        None,
        "heads of 64 or 128",
    )


RULE = training_rule(NAME, check)
