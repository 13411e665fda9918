"""The compiled program is broken into pieces, with Python in between."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.workload import Site
from hotlap.records.finding import Finding

NAME = "graph_breaks"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The breaks that torch counted."""
    breaks = training.habits.of("compiled").get("breaks", {})
    if not breaks:
        return
    rank = case.kernels.rank if case.kernels else None
    placed = [
        f"{place(Site(one.file, one.line))}: {_first_line(one.reason)}"
        for one in (rank.graph_breaks if rank else ())
    ]
    told = placed[:3] or [_first_line(reason) for reason in list(breaks)[:3]]
    yield Finding(
        NAME,
        "advice",
        f"torch.compile breaks its graph in {sum(breaks.values())} places",
        tuple(told),
        None,
        ("" if placed else "TORCH_LOGS=graph_breaks names the lines; ")
        + "move prints, reads of values and calls of other libraries out of the model",
    )


def _first_line(reason: str) -> str:
    return next((line.strip() for line in reason.splitlines() if line.strip()), reason)


RULE = training_rule(NAME, check)
