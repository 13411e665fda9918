"""A measured Machine sets what the shipped calibration takes from others like it.

What `hotlap doctor` measures are ceilings: the best block of one kernel alone. A training stays a
little below them, by shares that GPUs have in common; those are the constants here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotlap.errors import UsageError
from hotlap.machine.ceilings import SMALL_STEP
from hotlap.machine.chips import find_chip
from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import KINDS, Gpus, peak_flops_per_s
from hotlap.planner.precision import Precision
from hotlap.records.ceilings import Ceilings, Exchange

SUSTAINED = 0.97
"""Of the best block of large products, what they keep in a training, where clocks fall under load:
on an A100, and on an H200 where kernels of 24 trainings were timed."""
USUAL_FP32 = 0.76
"""Of the peak, what large products in fp32 reach on the GPU that the shipped number is of."""
USUAL_COPY = 0.89
"""Of the bandwidth, what a copy reaches on the GPUs that the shipped numbers are of."""
USUAL_SMALL_STEP_S = 16.5e-3
"""The step of a small model on a host with the shipped launches. On the one where both were
measured it took 15.2 ms, and ResNet-50 waited 0.92 of the shipped time for its launches."""
PRODUCTS = {
    "fp32": ("matmul fp32",),
    "tf32": ("matmul tf32",),
    "16bit": ("matmul bf16", "matmul fp16"),
    "fp8": ("matmul fp8",),
}


@dataclass(frozen=True, slots=True)
class ByMachine:
    """The calibration and the GPUs as measured, and what was taken."""

    by: Calibration
    gpus: Gpus
    words: str


def by_machine(by: Calibration, gpus: Gpus, ceilings: Ceilings, precision: Precision) -> ByMachine:
    """Every number that was measured in the place of the shipped one."""
    device = _device(gpus, ceilings)
    generation, taken = gpus.generation, []

    def rate(*names: str) -> float | None:
        found = (ceilings.rate(name, device) for name in names)
        return next((value for value in found if value), None)

    product = rate(*PRODUCTS[precision.rate])
    if product:
        share = product / peak_flops_per_s(gpus.chip, precision.rate)
        if precision.rate == "fp32":
            by = replace(by, fp32_reach=by.fp32_reach * share / USUAL_FP32)
        else:
            by = replace(by, product_reach=by.product_reach | {generation: SUSTAINED * share})
        taken.append(f"products {product / 1e12:.0f} TFLOP/s")
    copy = rate("memory copy")
    if copy:
        share = copy / gpus.chip.bandwidth_bytes_per_s / USUAL_COPY
        shipped = by.stream_reach_of.get(generation, by.stream_reach)
        by = replace(by, stream_reach_of=by.stream_reach_of | {generation: shipped * share})
        taken.append(f"copy {copy / 1e9:,.0f} GB/s")
    small_step = rate(SMALL_STEP)
    if small_step:
        shipped = by.kernel_s_of.get(generation, by.kernel_s) * small_step / USUAL_SMALL_STEP_S
        by = replace(by, kernel_s_of=by.kernel_s_of | {generation: shipped})
        taken.append(f"small step {small_step * 1e3:.1f} ms")
    host = rate("host to device, pinned")
    if host:
        gpus = replace(gpus, own_host_link_gb_per_s=host / 1e9)
        taken.append(f"host link {host / 1e9:.0f} GB/s")
    by, links = _links(by, gpus, ceilings)
    if not taken:
        raise UsageError(
            f"--machine: the ceilings of {device} were not measured; run hotlap doctor"
        )
    return ByMachine(by, gpus, f"measured {ceilings.measured}: {', '.join(taken + links)}")


def _device(gpus: Gpus, ceilings: Ceilings) -> str:
    names = list(dict.fromkeys(one.device for one in ceilings.rates if one.device != "cpu"))
    chip = find_chip(names[0], None) if names else None
    if chip is None or KINDS[gpus.kind].chip != chip.name:
        found = names[0] if names else "no GPU"
        raise UsageError(f"--machine has {found}; --gpu is {gpus.kind}: name the same kind")
    return names[0]


def _links(by: Calibration, gpus: Gpus, ceilings: Ceilings) -> tuple[Calibration, list[str]]:
    """From sums over the ranks of one node: bandwidth of the largest, hops of the smallest."""
    sums = [
        one
        for one in ceilings.exchanges
        if one.operation == "all_reduce" and one.device == "cuda" and one.median_s
        and 1 < one.world_size <= gpus.per_node
    ]  # fmt: skip
    if not sums:
        return by, []
    small, large = (pick(sums, key=_size) for pick in (min, max))
    words = []
    if large.bus_bytes_per_s:
        reach = large.bus_bytes_per_s / gpus.link_bytes_per_s
        by = replace(by, link_reach=reach)
        words.append(f"links {large.bus_bytes_per_s / 1e9:.0f} GB/s")
    if small.median_s and small.n_bytes < 65536:
        by = replace(by, link_latency_s=small.median_s / (2 * (small.world_size - 1)))
        words.append(f"{small.median_s * 1e6:.0f} µs for the smallest sum")
    return by, words


def _size(one: Exchange) -> int:
    return one.n_bytes
