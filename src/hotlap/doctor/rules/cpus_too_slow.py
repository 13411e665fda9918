"""The step waits for data although every CPU has a worker: the host cannot prepare batches as fast.

The gain is that of a step that no longer waits, the most that can be had.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, percent, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "cpus_too_slow"
BYTES = BY_NAME["uint8_images"]


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """As many workers as CPUs; neither their starts nor files are the reason."""
    share, workload = training.share("data"), training.workload
    n_workers = max((one.facts.get("num_workers") or 0 for one in workload.loaders), default=0)
    n_cpus = workload.n_cpus // (len(training.run.ranks) or 1)
    n_samples = (training.samples_per_step or 0) * training.habits.n_steps
    starts = training.share_of(training.calls("iter(loader)", "iter(new loader)"))
    if not n_workers or not n_cpus <= n_workers <= limits.most_workers_per_cpu * n_cpus:
        return
    if share - starts < limits.least_starved_share:
        return
    if n_samples and training.habits.n_opens / n_samples >= limits.least_opens_per_sample:
        return
    yield Finding(
        NAME,
        "warning",
        f"{percent(share)} of the step waits for data, with a worker on every CPU",
        (f"{n_of(n_workers, 'worker')}, {n_of(n_cpus, 'CPU')} allocated for each rank",),
        without(share),
        _cure(training),
    )


def _cure(training: Training) -> str:
    others = (
        "decode and augment on the device; store what is decoded, smaller images or ready tensors; "
        "or ask for more CPUs a GPU"
    )
    if not BYTES.applies(training.workload).yes:
        return others
    return f"less work for the CPUs: {lever_cure(training, BYTES.name)}; or {others}"


RULE = training_rule(NAME, check)
