"""Batches are copied to the GPU from memory that it cannot read by itself.

The gain is that of copies at the rate of pinned ones, where the machine's rates were measured; else
what pinned memory usually saves. Where there is no DataLoader, a profile tells which copies are so.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_cure, lever_gain, percent, places, without
from hotlap.doctor.kernels import lines
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.records.profile import TopOp

NAME = "pageable_copies"
KERNEL = "Memcpy HtoD (Pageable"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Batches that are not pinned, and time that goes into copies."""
    share, loaders = training.share("transfer"), training.workload.loaders
    if not training.is_on_gpu or share < limits.least_transfer_share:
        return
    pageable = [one for one in loaders if not one.facts.get("pin_memory")]
    seen = _seen(case) if not loaders else []
    if not pageable and not seen:
        return
    where = lines(site for op in seen for site in op.sites) or "where batches are copied"
    yield Finding(
        NAME,
        "advice",
        f"{percent(share)} of the step copies batches from memory that is not pinned",
        (f"DataLoader at {places([one.site for one in pageable])}" if pageable else where,),
        _gain(training, case, share),
        lever_cure(training, "pin_memory")
        if pageable
        else f"{where}: .pin_memory() for the data once, and non_blocking=True for the copies",
    )


def _seen(case: Case) -> list[TopOp]:
    """Copies from memory that is not pinned, as a profile names them."""
    tops = case.kernels.top("copy") if case.kernels else []
    return [op for op in tops if op.name.startswith(KERNEL)]


def _gain(training: Training, case: Case, share: float) -> float | None:
    ceilings = case.machine.ceilings
    pinned = ceilings.rate("host to device, pinned") if ceilings else None
    pageable = ceilings.rate("host to device, pageable") if ceilings else None
    if not pinned or not pageable:
        return lever_gain(training, "pin_memory")
    return without(share * max(0.0, 1.0 - pageable / pinned))


RULE = training_rule(NAME, check)
