"""The command did not come to its end: what it was ended by."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding
from hotlap.records.run import Run
from hotlap.wording import n_of

NAME = "command_failed"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The status of its Run."""
    run = case.run
    if run is None or run.status in ("ok", "cut"):
        return
    n_steps = run.steps.measured + run.steps.warmup
    after = f"after {n_of(n_steps, 'step')}" if n_steps else "before its first step"
    yield Finding(
        NAME,
        "error",
        f"the command {_ending(run)} {after}",
        (f"status {run.status}, after {run.total_s:.1f} s", *run.notes[:2]),
        None,
        "a smaller batch, or `hotlap run --levers checkpointing`"
        if run.status == "oom"
        else "its own last lines say why; run it by itself first",
    )


def _ending(run: Run) -> str:
    if run.status == "oom":
        return "ran out of memory"
    if run.exit_code is not None and run.exit_code < 0:
        return f"was ended by {signal.Signals(-run.exit_code).name}"
    return f"ended with exit code {run.exit_code}"


RULE = Rule(NAME, check, needs=("run",))
