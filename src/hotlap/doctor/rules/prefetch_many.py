"""Workers keep many batches ready: host memory for nothing, if the usual two are enough."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import percent, place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "prefetch_many"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The batches of all workers of a loader, where the step does not wait for data."""
    share = training.share("data")
    for one in training.workload.loaders:
        n_workers, n_each = one.facts.get("num_workers") or 0, one.facts.get("prefetch_factor") or 0
        if not n_workers or n_each <= limits.most_prefetched or share >= limits.least_data_share:
            continue
        yield Finding(
            NAME,
            "note",
            f"{n_workers * n_each} batches are kept ready in host memory",
            (
                f"prefetch_factor={n_each} for {n_of(n_workers, 'worker')} at {place(one.site)}; "
                f"{percent(share)} of the step waits for data",
            ),
            None,
            f"{place(one.site)}: prefetch_factor=2, if the step waits no longer with it",
        )


RULE = training_rule(NAME, check)
