"""The last batch of an epoch is smaller, where programs are made for one size.

torch.compile makes a second program for it, slower for any size; cudnn.benchmark times its kernels
for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "last_batch"
CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Two sizes of input that differ in their number of samples, the smaller one being rare."""
    shapes = sorted(training.habits.shapes, key=lambda one: -one[1])
    if len(shapes) != 2:
        return
    (usual, _), (rare, n_rare) = shapes
    if usual[1:] != rare[1:] or not rare or rare[0] >= usual[0]:
        return
    if not _is_made_for_a_size(training):
        return
    sites = [one.site for one in training.workload.loaders]
    yield Finding(
        NAME,
        "advice",
        f"the last batch has {n_of(rare[0], 'sample')}, the others {usual[0]}",
        (
            f"{n_of(n_rare, 'such batch', 'such batches')} so far, and what is made for one size "
            "is made for it too",
        ),
        None,
        f"{places(sites)}: DataLoader(..., drop_last=True)",
    )


def _is_made_for_a_size(training: Training) -> bool:
    workload = training.workload
    if any(one.facts.get("is_compiled") for one in workload.models):
        return True
    has_benchmark = bool(workload.flags.get("cudnn_benchmark")) and training.is_on_gpu
    return has_benchmark and bool(workload.n_modules(*CONVOLUTIONS))


RULE = training_rule(NAME, check)
