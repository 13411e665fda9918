"""A profiler of torch's follows the whole training, and not a window of some steps."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "profiler_on"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Whether one was on when the model was first called."""
    if not training.habits.of("settings").get("is_profiled"):
        return
    names = ("profile", "emit_nvtx", "emit_itt")
    sites = [file.site(call) for file, call in training.script.calls(*names)]
    yield Finding(
        NAME,
        "warning",
        "the training runs under a profiler from its first step",
        (f"at {places(sites)}" if sites else "torch's own",),
        None,
        "without it; or with a schedule of some steps (torch.profiler.schedule)",
    )


RULE = training_rule(NAME, check)
