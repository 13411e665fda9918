"""SyncBatchNorm exchanges statistics in every layer; each rank has enough samples itself."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "sync_batchnorm"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The class in the model, and the samples of a rank."""
    n_norms, shapes = training.workload.n_modules("SyncBatchNorm"), training.habits.shapes
    if not n_norms or not shapes or shapes[0][0][0] < limits.enough_for_norm:
        return
    sites = [file.site(call) for file, call in training.script.calls("convert_sync_batchnorm")]
    yield Finding(
        NAME,
        "advice",
        f"{n_of(n_norms, 'SyncBatchNorm layer')} with {shapes[0][0][0]} samples on each rank",
        ("each exchanges its statistics in forward and in backward",),
        None,
        f"{places(sites)}: plain batch norms" if sites else "plain batch norms",
    )


RULE = training_rule(NAME, check)
