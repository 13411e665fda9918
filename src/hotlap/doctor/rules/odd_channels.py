"""Channels of convolutions that do not fit the tiles of tensor cores.

The gain is that of products at the rate that large ones usually reach, if a profile tells theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.kernels import cost_of_shapes
from hotlap.doctor.model import describe_layer
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "odd_channels"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Channels that 8 does not divide, but for the first layer's."""
    if not training.is_on_gpu:
        return
    odd = [
        layer
        for layer in training.habits.layers
        if layer["kind"] == "Conv2d"
        and layer["sizes"]["in_channels"] >= limits.tile
        and any(layer["sizes"][name] % limits.tile for name in ("in_channels", "out_channels"))
    ]
    if not odd:
        return
    severity, gain = cost_of_shapes(case.kernels, "conv", limits)
    yield Finding(
        NAME,
        severity,
        f"{n_of(len(odd), 'convolution')} with channels that {limits.tile} does not divide",
        tuple(describe_layer(layer) for layer in odd[:3]),
        gain,
        f"numbers of channels that are multiples of {limits.tile}",
    )


RULE = training_rule(NAME, check)
