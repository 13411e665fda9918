"""Ranks exchange gradients while nothing is computed: the exchange is not hidden.

The gain is that of a step in which all of it is behind backward. What ranks spend waiting for one
that comes late is no exchange.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "exposed_communication"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The time of collectives beside which no other kernel runs, less the waits in them."""
    kernels, skew = case.kernels, case.profile.skew if case.profile else None
    seen = kernels.rank.communication if kernels else None
    if kernels is None or seen is None:
        return
    waiting = skew.waiting_share(kernels.rank.rank) if skew else 0.0
    exposed_s = seen.exposed_s * (1.0 - waiting)
    share = kernels.share(exposed_s)
    if share < limits.least_exposed_share:
        return
    calls = "one collective" if seen.calls == 1 else f"{seen.calls:.3g} collectives"
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step is communication and nothing else",
        (
            f"{exposed_s * 1e3:.3g} of {seen.total_s * 1e3:.3g} ms a step are not hidden, in "
            f"{calls}",
        ),
        without(share),
        "more work between exchanges (a larger batch, accumulation under no_sync()), 16-bit "
        "gradients (a communication hook), other bucket sizes (`hotlap tune --only ddp`)",
    )


RULE = Rule(NAME, check, needs=("training", "profile"))
