"""The tiles of big products do not fill their last wave: 1.1 waves over the GPU cost two.

The gain is that of products without the idle part of their last waves.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels, lines
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.records.profile import Matmul

NAME = "waves"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """Products of at least one wave; smaller ones have too little to do in any shape."""
    uneven = [
        one
        for one in kernels.rank.matmuls
        if (one.waves or 0) >= 1 and _lost(one) >= limits.least_wave_loss
    ]
    lost = kernels.share(sum(one.seconds * _lost(one) for one in uneven))
    if lost < limits.least_kernel_loss:
        return
    yield Finding(
        NAME,
        "advice",
        f"last waves that are not full take {percent(lost)} of the step",
        tuple(_told(one) for one in uneven[:3]),
        without(lost),
        "sizes (batch, width, vocabulary) a little smaller, so that a wave is saved, or as much "
        "larger as the last wave has room for",
    )


def _lost(one: Matmul) -> float:
    """The part of its time in which multiprocessors have no tile."""
    return 1.0 - one.wave_efficiency if one.wave_efficiency is not None else 0.0


def _told(one: Matmul) -> str:
    where = lines(one.sites)
    text = (
        f"{one.m} x {one.n} results of {one.k}: {one.tiles} tiles, {one.waves:.2f} waves, "
        f"{percent(1 - _lost(one))} of the multiprocessors in use"
    )
    return f"{text} ({where})" if where else text


RULE = profile_rule(NAME, check)
