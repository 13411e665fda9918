"""oneDNN's instruction set: the newest that oneDNN may use for convolutions and matrix products.

When: the CPU advertises AMX. On some virtual machines AMX is advertised and cannot be used: the
first bf16 product ends the process with 'illegal instruction'. Without AMX bf16 is slower than with
it, but runs. Rounding: other kernels add in another order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, set_environment
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""The second is its older name, which oneDNN still reads."""

WITHOUT_AMX = (
    *("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"),
    *("AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16"),
)
"""What oneDNN calls the sets of instructions before AMX."""


def apply(torch: Any, value: str, process: Process) -> None:
    """OneDNN reads the variable at its first use."""
    if os.environ.get(VARIABLES[0]) == value:
        process.did(f"oneDNN uses no newer instructions than {value}")


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """What oneDNN reads."""
    return {VARIABLES[0]: value}


def values(workload: Workload) -> tuple[str, ...]:
    """The newest set without AMX that the CPU has."""
    newest = ("AVX512_CORE_BF16",) if "avx512_bf16" in workload.cpu_flags else ()
    return (*newest, "AVX2")


def applies(workload: Workload) -> Decision:
    """A CPU that advertises AMX."""
    if workload.device != "cpu":
        return Decision(False, "the model is not on the CPU")
    if "amx_bf16" not in workload.cpu_flags:
        return Decision(False, "this CPU does not advertise AMX")
    if any(name in os.environ for name in VARIABLES):
        return Decision(False, "the environment limits oneDNN already")
    return Decision(
        True, "the CPU advertises AMX, which may be slow or unusable on a virtual machine"
    )


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """One variable."""
    return (set_environment(**environment(value, workload)),)


LEVER = Lever(
    name="onednn_isa",
    summary="oneDNN keeps off the newest instructions of the CPU",
    changes="rounding",
    bound=1e-5,
    risk="safe",
    phases=("forward", "backward"),
    saves=lambda workload: 0.03,
    values=values,
    takes=one_of(*WITHOUT_AMX),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
)
