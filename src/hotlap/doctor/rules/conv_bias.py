"""A convolution adds a bias that the norm behind it takes away again."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import is_constant, keyword
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "conv_bias"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Convolutions with a bias and a norm of as many channels right behind."""
    found = [o for o in training.habits.layers if o.get("is_normed") and o.get("has_bias")]
    if not found:
        return
    sites = [
        file.site(call)
        for file, call in training.script.calls("Conv1d", "Conv2d", "Conv3d")
        if not is_constant(keyword(call, "bias"), False)
    ]
    yield Finding(
        NAME,
        "advice",
        f"{len(found)} convolutions before a norm have a bias",
        (f"the first is '{found[0]['name']}'",),
        None,
        f"{places(sites)}: bias=False" if sites else "bias=False for them",
    )


RULE = training_rule(NAME, check)
