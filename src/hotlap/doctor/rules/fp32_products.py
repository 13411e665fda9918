"""The model computes in fp32 on a GPU whose tensor cores stand idle, or half idle with TF32.

The gain is that of these products at the rate of 16-bit ones, where a profile has seen them; else
what half precision usually saves of forward and backward. Nothing where the GPU waits for its host.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import BY_NAME, lever_cure, lever_gain, percent
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "fp32_products"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """An fp32 model on a GPU that has bf16, and a step that is not spent elsewhere."""
    workload = training.workload
    share = training.share("forward", "backward")
    if not training.is_on_gpu or not BY_NAME["bf16"].applies(workload).yes:
        return
    if workload.waits_for_host or share < limits.least_compute_share:
        return
    is_strict = workload.flags.get("matmul_precision") == "highest"
    how = "without tensor cores" if is_strict else "in TF32"
    seen = case.kernels.gain_of_narrow() if case.kernels else None
    yield Finding(
        NAME,
        "warning" if is_strict else "advice",
        f"matrix products run in fp32, {how}",
        (
            f"{workload.device_name} has bf16; forward and backward take {percent(share)}",
            *(("fp32 products alone would be faster with the lever tf32",) if is_strict else ()),
        ),
        seen or lever_gain(training, "bf16"),
        lever_cure(training, "bf16"),
    )


RULE = training_rule(NAME, check)
