"""The model trains on the CPU although a GPU is there.

The gain is the measured rate of fp32 products on the one over the other's.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "not_on_gpu"
FP32 = "matmul fp32"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The device of the model, and the GPUs of the machine."""
    if training.workload.device != "cpu" or not case.gpus:
        return
    ceilings = case.machine.ceilings
    rates = (
        {one.device: one.value for one in ceilings.rates if one.name == FP32} if ceilings else {}
    )
    cpu = rates.pop("cpu", None)
    gpu = max((rate for rate in rates.values() if rate), default=None)
    yield Finding(
        NAME,
        "warning",
        "the model is on the CPU, and a GPU is there",
        (f"{case.gpus[0].name}; the model was on 'cpu' in its first step",),
        gpu / cpu if gpu and cpu else None,
        "model.to('cuda'), and its inputs with .to('cuda', non_blocking=True)",
    )


RULE = training_rule(NAME, check)
