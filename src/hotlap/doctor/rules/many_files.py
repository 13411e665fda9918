"""Every sample is a file of its own, and the step waits for data.

A shared file system has bandwidth, and few operations a second for all its users. The gain is that
of a step that does not wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "many_files"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Files opened a sample, on a network file system or where the step waits."""
    per_step, share = training.samples_per_step, training.share("data")
    storage = case.machine.system.storage
    is_remote = storage is not None and storage.kind == "network"
    n_samples = (per_step or 0.0) * training.habits.n_steps
    if not n_samples or training.habits.n_opens < limits.least_opens_per_sample * n_samples:
        return
    if share < limits.least_data_share and not is_remote:
        return
    folder = training.habits.of("opens").get("folder") or "the data's folder"
    yield Finding(
        NAME,
        "advice",
        f"{training.habits.n_opens / n_samples:.1f} files are opened for each sample",
        (f"{training.habits.n_opens} in {folder}; {percent(share)} of the step waits for data",),
        without(share) if share >= limits.least_data_share else None,
        "pack the samples into a few large files (tar shards, or one array that is memory-mapped)",
    )


RULE = training_rule(NAME, check)
