"""cuDNN times its convolutions anew for each of many input sizes."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import times

NAME = "benchmark_varies"
CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The flag on, and inputs of many sizes."""
    shapes, workload = training.habits.shapes, training.workload
    if not training.is_on_gpu or not workload.flags.get("cudnn_benchmark"):
        return
    if len(shapes) <= limits.most_benchmarked or not workload.n_modules(*CONVOLUTIONS):
        return
    yield Finding(
        NAME,
        "warning",
        f"cudnn.benchmark is on, and inputs have {len(shapes)} sizes so far",
        tuple(f"{list(shape)}: {times(n)}" for shape, n in shapes[:3]),
        None,
        "torch.backends.cudnn.benchmark = False, or inputs of few sizes (crop, pad, drop_last)",
    )


RULE = training_rule(NAME, check)
