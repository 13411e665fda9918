"""Sizes of linear layers that do not fit the tiles of tensor cores.

The gain is that of products at the rate that large ones usually reach, where a profile tells theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import n_of
from hotlap.doctor.kernels import cost_of_shapes
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
    severity, gain = cost_of_shapes(case.kernels, "matmul", limits)
    yield Finding(
        NAME,
        severity,
        f"{n_of(len(odd), 'linear layer')} with sizes that {limits.tile} does not divide",
        tuple(describe_layer(layer) for layer in odd[:3]),
        gain,
        f"sizes that are multiples of {limits.tile}, better of 64",
    )


RULE = training_rule(NAME, check)
