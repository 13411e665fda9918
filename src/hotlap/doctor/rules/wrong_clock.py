"""The loop times itself with the host's clock while the device is still at work."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "wrong_clock"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A clock read in the loop, on a GPU, and no barrier anywhere."""
    if not training.is_on_gpu or any(True for _ in training.script.calls("synchronize")):
        return
    clocks = ("time.time", "time.perf_counter", "time.monotonic", "perf_counter")
    sites = [
        file.site(node)
        for file, node in training.script.in_steps()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in clocks
    ]
    if not sites:
        return
    yield Finding(
        NAME,
        "note",
        "the loop reads the host's clock without waiting for the device",
        (f"at {places(sites)}",),
        None,
        "`hotlap time` has each phase on the device's timeline, or torch.cuda.Event",
    )


RULE = training_rule(NAME, check)
