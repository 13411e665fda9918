"""nn.DataParallel: one process drives all GPUs, and copies the model to them in every step."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "data_parallel"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The class in the model."""
    if not training.workload.n_modules("DataParallel"):
        return
    sites = [file.site(call) for file, call in training.script.calls("DataParallel")]
    yield Finding(
        NAME,
        "warning",
        "the model is in nn.DataParallel",
        (f"made at {places(sites)}" if sites else "a module of the model",),
        None,
        "one process a GPU: torchrun, and torch.nn.parallel.DistributedDataParallel",
    )


RULE = training_rule(NAME, check)
