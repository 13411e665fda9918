"""GPUs before compute capability 8.0 have no bf16 tensor cores: bf16 runs, slower than fp32."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule, named
from hotlap.doctor.thresholds import Thresholds
from hotlap.machine.known_bad import parse_version
from hotlap.records.finding import Finding

NAME = "bf16_emulated"
FIRST_WITH_TENSOR_CORES, FIRST_WITH_BF16 = (7, 0), (8, 0)


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Volta and Turing."""
    if case.machine.software.torch is None or case.machine.software.torch.hip:
        return
    old = [
        gpu
        for gpu in case.gpus
        if FIRST_WITH_TENSOR_CORES <= parse_version(gpu.compute_capability) < FIRST_WITH_BF16
    ]
    if old:
        yield Finding(
            NAME,
            "note",
            f"no bf16 tensor cores on {named(old)}",
            (f"{old[0].name}, compute capability {old[0].compute_capability}",),
            None,
            "use fp16 with a gradient scaler (lever fp16) and not bf16",
        )


RULE = Rule(NAME, check)
