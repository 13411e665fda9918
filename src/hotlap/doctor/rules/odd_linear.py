"""Sizes of linear layers that do not fit the tiles of tensor cores.

The gain is that of products at the rate that large ones usually reach, if a profile tells theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotlap.doctor.kernels import cost_of_shapes
from hotlap.doctor.model import describe_layer, vocabularies
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "odd_linear"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Sizes and rows a batch that 8 does not divide, of layers that are large enough to matter."""
    if not training.is_on_gpu:
        return
    known = vocabularies(training)
    large = [
        layer
        for layer in training.habits.layers
        if layer["kind"] == "Linear" and min(layer["sizes"].values()) >= limits.least_layer_size
    ]
    odd = [
        layer
        for layer in large
        if not known & set(layer["sizes"].values())
        and any(size % limits.tile for size in layer["sizes"].values())
    ]
    rows = _rows(training) if large else 0
    if not odd and rows % limits.tile == 0:
        return
    severity, gain = cost_of_shapes(case.kernels, "matmul", limits)
    if odd:
        what = n_of(len(odd), "linear layer")
        evidence = tuple(describe_layer(layer) for layer in odd[:3])
    else:
        what = "batches of linear layers"
        evidence = (f"{rows} rows a batch",)
        severity = severity if gain else "note"  # of lesser weight than the sizes of layers
    yield Finding(
        NAME,
        severity,
        f"{what} with sizes that {limits.tile} does not divide",
        evidence,
        gain,
        f"sizes that are multiples of {limits.tile}, better of 64",
    )


def _rows(training: Training) -> int:
    """Of the products with the layers' weights: all samples, or all places of all sequences."""
    inputs = [one for model in training.workload.models for one in model.facts.get("inputs", ())]
    if not inputs or not inputs[0][0]:
        return 0
    shape, dtype, _ = inputs[0]
    if len(shape) > 3:  # images: layers behind convolutions have a row a sample
        return int(shape[0])
    return math.prod(shape[:-1] if "float" in dtype else shape)


RULE = training_rule(NAME, check)
