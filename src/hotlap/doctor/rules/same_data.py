"""All ranks of a data-parallel training go through the same samples: no loader shares them out."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import place
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "same_data"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Loaders of a DDP training without a sampler of any kind."""
    workload = training.workload
    is_ddp = any(one.facts.get("is_ddp") for one in workload.models)
    own = [one for one in workload.loaders if not one.facts.get("is_iterable")]
    shared = [o for o in own if o.facts.get("has_sampler") or o.facts.get("has_batch_sampler")]
    if workload.world_size < 2 or not is_ddp or not own or shared:
        return
    yield Finding(
        NAME,
        "warning",
        f"{workload.world_size} ranks are given the same samples",
        (f"DataLoader at {place(own[0].site)} has no sampler",),
        None,
        f"{place(own[0].site)}: sampler=torch.utils.data.DistributedSampler(dataset)",
    )


RULE = training_rule(NAME, check)
