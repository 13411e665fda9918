"""All allocated CPUs lie on another NUMA node than the GPU: launches and copies go across."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "numa_far"


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A GPU whose node has CPUs, none of them this process's."""
    nodes = {node.index: node for node in case.machine.system.cpu.numa}
    far = [
        gpu
        for gpu in case.gpus
        if gpu.numa_node is not None
        and (node := nodes.get(gpu.numa_node)) is not None
        and node.n_cpus
        and node.n_cpus_allocated == 0
    ]
    if far:
        yield Finding(
            NAME,
            "advice",
            f"no allocated CPU lies on the NUMA node of {named(far)}",
            tuple(f"GPU {gpu.index} is on node {gpu.numa_node}" for gpu in far),
            None,
            "bind ranks to the CPUs of their GPU: srun --gpu-bind=closest (lever affinity)",
        )


RULE = Rule(NAME, check)
