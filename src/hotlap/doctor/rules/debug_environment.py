"""Debugging aids are on in the environment: each slows every step of every training."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, is_on
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "debug_environment"
SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel",
    "HIP_LAUNCH_BLOCKING": "the host waits for every kernel",
    "AMD_SERIALIZE_KERNEL": "the host waits for every kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "CUDA_CACHE_DISABLE": "kernels are compiled anew at every start",
    "TORCH_COMPILE_DEBUG": "the compiler writes out everything it does",
    "TRITON_INTERPRET": "Triton kernels are interpreted on the CPU",
    "PYTHONDEVMODE": "Python checks every allocation",
    "MALLOC_CHECK_": "every allocation is checked",
    "MALLOC_PERTURB_": "every allocation is filled",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for every collective",
    "NCCL_BLOCKING_WAIT": "the host waits for every collective",
}
VALUES = {
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "every collective is checked by another one"),
    "NCCL_DEBUG": (("INFO", "TRACE"), "NCCL writes a log"),
    "PYTHONMALLOC": (("debug", "malloc_debug", "pymalloc_debug"), "Python checks its allocations"),
}
QUIET = ("NCCL_DEBUG",)
"""Writes at the start and then little: alone, it is no warning."""


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """All of them in one finding."""
    found = {name: why for name, why in SWITCHES.items() if is_on(case.environment.get(name))}
    for name, (values, why) in VALUES.items():
        if case.environment.get(name) in values:
            found[name] = why
    if not found:
        return
    yield Finding(
        NAME,
        "note" if all(name in QUIET for name in found) else "warning",
        f"debugging aids are on: {', '.join(found)}",
        tuple(f"{name}={case.environment[name]}: {why}" for name, why in found.items()),
        None,
        f"unset {' '.join(found)} (lever debug_off knows those inside a script)",
    )


RULE = Rule(NAME, check)
