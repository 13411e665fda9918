"""Ranks exchange gradients while nothing is computed: the exchange is not hidden.

The gain is that of a step in which all of it is behind backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.kernels import Kernels
from hotlap.doctor.rule import profile_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "exposed_communication"


def check(kernels: Kernels, training: Training, limits: Thresholds) -> Iterator[Finding]:
    """The time of collectives beside which no other kernel runs."""
    seen = kernels.rank.communication
    if seen is None or kernels.share(seen.exposed_s) < limits.least_exposed_share:
        return
    share = kernels.share(seen.exposed_s)
    calls = "one collective" if seen.calls == 1 else f"{seen.calls:.3g} collectives"
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is communication and nothing else",
        (
            f"{seen.exposed_s * 1e3:.3g} of {seen.total_s * 1e3:.3g} ms a step are not hidden, in "
            f"{calls}",
        ),
        without(share),
        "more work between exchanges (a larger batch, accumulation under no_sync()), 16-bit "
        "gradients (a communication hook), other bucket sizes (`hotlap tune --only ddp`)",
    )


RULE = profile_rule(NAME, check)
