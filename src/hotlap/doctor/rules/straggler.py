"""One rank has more to do than the others, which wait for it in backward.

The gain is that of a step in which each has the mean of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from hotlap.doctor.cure import without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.records.rank import RankRecord

NAME = "straggler"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Each rank's time outside of backward, where it waits for nobody."""
    own = {rank.rank: _own_s(rank, training) for rank in training.ranks}
    if len(own) < 2:
        return
    slowest = max(own, key=lambda rank: own[rank])
    excess = own[slowest] - fmean(own.values())
    if excess < limits.least_straggling * training.step.mean:
        return
    host = next(rank.host for rank in training.ranks if rank.rank == slowest)
    yield Finding(
        NAME,
        "warning",
        f"rank {slowest} keeps the others waiting",
        (
            f"{own[slowest] * 1e3:.3g} ms a step of its own on {host}, "
            f"{fmean(own.values()) * 1e3:.3g} ms in the mean",
        ),
        without(excess / training.step.mean),
        "give all ranks as much work (batches by tokens, not samples), and look at that rank's "
        "host: its disk, its CPUs, its GPU's clock",
    )


def _own_s(rank: RankRecord, training: Training) -> float:
    """Seconds of the usual measured step outside of backward."""
    table, skip = rank.steps, training.run.steps.warmup
    columns = (table.data_ns, table.transfer_ns, table.forward_ns, table.other_ns)
    rows = list(zip(*(column[skip:] for column in columns), strict=True))
    known = [sum(n for n in row if n is not None) for row in rows if None not in row]
    return median(known) / 1e9 if known else 0.0


RULE = training_rule(NAME, check)
