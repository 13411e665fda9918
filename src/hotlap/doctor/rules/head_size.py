"""Attention heads, or sequences, of sizes that fused attention kernels do not take well."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.model import describe_layer
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "head_size"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Sizes of heads that 8 does not divide, and one length of all sequences that 64 does not."""
    if not training.is_on_gpu:
        return
    yield from _lengths(training, limits)
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
        f"{n_of(len(odd), 'attention layer')} with heads whose size {limits.tile} does not divide",
        tuple(describe_layer(layer) for layer in odd[:3]),
        None,
        "heads of 64 or 128",
    )


def _lengths(training: Training, limits: Thresholds) -> Iterator[Finding]:
    """Of sequences that all are as long, which is a choice; others are as their data."""
    kinds = {layer["kind"] for layer in training.habits.layers}
    calls = list(training.script.calls("scaled_dot_product_attention"))
    lengths = {shape[1] for shape, _ in training.habits.shapes if len(shape) in (2, 3)}
    length = lengths.pop() if len(lengths) == 1 else 0
    if length < limits.sequence_tile or length % limits.sequence_tile == 0:
        return
    if calls or "MultiheadAttention" in kinds:
        yield Finding(
            NAME,
            "note",
            f"sequences of {length:,}, which {limits.sequence_tile} does not divide",
            ("fused attention works on tiles of so many places, the last one half empty",),
            None,
            f"sequences of {-(-length // limits.sequence_tile) * limits.sequence_tile:,}",
        )


RULE = training_rule(NAME, check)
