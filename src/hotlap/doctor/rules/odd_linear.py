"""Sizes of linear layers that do not fit the tiles of tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.model import describe_layer, vocabularies
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "odd_linear"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Sizes that 8 does not divide, of layers that are large enough to matter."""
    if not training.is_on_gpu:
        return
    known = vocabularies(training)
    odd = [
        layer
        for layer in training.habits.layers
        if layer["kind"] == "Linear"
        and min(layer["sizes"].values()) >= limits.least_layer_size
        and not known & set(layer["sizes"].values())
        and any(size % limits.tile for size in layer["sizes"].values())
    ]
    if not odd:
        return
    yield Finding(
        NAME,
        "advice",
        f"{len(odd)} linear layers have sizes that {limits.tile} does not divide",
        tuple(describe_layer(layer) for layer in odd[:3]),
        None,
        f"sizes that are multiples of {limits.tile}, better of 64",
    )


RULE = training_rule(NAME, check)
