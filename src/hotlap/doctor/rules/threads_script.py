"""The script sets fewer threads than CPUs are allocated, and trains on the CPU.

The gain is that of forward, backward and optimizer on all of them, if they split as well as can be.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.wording import n_of

NAME = "threads_script"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A call of `set_num_threads`, and what it has left."""
    workload = training.workload
    n_threads = workload.flags.get("n_threads") or workload.n_cpus
    sites = [file.site(call) for file, call in training.script.calls("set_num_threads")]
    if training.is_on_gpu or not sites or workload.world_size > 1:
        return
    if n_threads * limits.least_cpus_per_thread > workload.n_cpus:
        return
    share = training.share("forward", "backward", "optimizer")
    yield Finding(
        NAME,
        "advice",
        f"the script computes in {n_of(n_threads, 'thread')} on {workload.n_cpus} CPUs",
        (f"torch.set_num_threads at {places(sites)}",),
        without(share * (1.0 - n_threads / workload.n_cpus)),
        f"{places(sites)}: torch.set_num_threads({workload.n_cpus}), or leave it out",
    )


RULE = training_rule(NAME, check)
