"""How many images a second the GPUs of a process could train on: what its CPUs have to bring.

The measure is a ResNet-50 on 224-pixel images, the network of every course; others eat less.
"""

from __future__ import annotations

from hotlap.doctor.rule import Case
from hotlap.doctor.thresholds import Thresholds
from hotlap.machine.chips import find_chip


def images_per_s(case: Case, limits: Thresholds) -> float | None:
    """Of the GPUs that this process's CPUs serve; None where no rate of them is known."""
    if not case.gpus:
        return None
    rate = _matrix_rate(case)
    if rate is None:
        return None
    return case.n_gpus * rate * limits.usual_mfu / limits.image_flops


def _matrix_rate(case: Case) -> float | None:
    """16-bit products of one GPU: measured, else as stated."""
    ceilings = case.machine.ceilings
    for name in ("matmul bf16", "matmul fp16"):
        for one in ceilings.rates if ceilings else ():
            if one.name == name and one.device != "cpu" and one.value:
                return one.value
    gpu = case.gpus[0]
    chip = find_chip(gpu.name, gpu.memory_bytes)
    return chip.dense_16bit_flops_per_s if chip else None
