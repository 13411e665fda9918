"""The GPU waits for its host: kernels end before the next is launched, and memory stands empty."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "small_batch"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A device that waits, and memory that is not used."""
    peak, gpus = training.run.memory.device_peak_bytes, case.gpus
    memory = gpus[0].memory_bytes if gpus else None
    if not training.is_on_gpu or not training.workload.waits_for_host:
        return
    if peak is None or memory is None or peak > limits.most_unused_memory * memory:
        return
    samples = training.samples_per_step
    yield Finding(
        NAME,
        "advice",
        "the GPU waits for its host, and most of its memory is free",
        (
            f"{100 * peak / memory:.1f} % of {memory / 2**30:.0f} GiB at the peak"
            + (f", {samples:.0f} samples a step" if samples else ""),
        ),
        None,
        "larger batches (`hotlap tune --sweep batch`), or fewer launches: "
        + lever_cure(training, "compile"),
    )


RULE = training_rule(NAME, check)
