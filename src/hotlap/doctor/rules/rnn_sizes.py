"""A recurrent layer whose sizes keep cuDNN from its fastest kernels."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.model import describe_layer
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "rnn_sizes"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Sizes that 8 does not divide."""
    if not training.is_on_gpu:
        return
    odd = [
        layer
        for layer in training.habits.layers
        if layer["kind"] in ("RNN", "LSTM", "GRU")
        and any(size % limits.tile for size in layer["sizes"].values())
    ]
    if not odd:
        return
    yield Finding(
        NAME,
        "advice",
        f"{len(odd)} recurrent layers have sizes that {limits.tile} does not divide",
        tuple(describe_layer(layer) for layer in odd[:3]),
        None,
        f"sizes that are multiples of {limits.tile}, of 32 for the hidden one",
    )


RULE = training_rule(NAME, check)
