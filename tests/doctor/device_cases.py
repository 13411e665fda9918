"""Faults of kernels on a GPU, and their twins, as traces put together by hand: steps of 1 ms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from device_trace import GEMM, NCCL, RELU, SGEMM, STEP_US, DeviceTrace, product


def steps(fill: Callable[[DeviceTrace, float], None], n: int = 3) -> DeviceTrace:
    """A trace of steps that are all alike."""
    trace = DeviceTrace()
    for step in range(n):
        at = 10_000 + step * STEP_US
        trace.mark(at)
        fill(trace, at)
    trace.mark(10_000 + n * STEP_US)
    return trace


def gemm(m: int, n: int, k: int, us: float = 960, kernel: str = GEMM, kind: str = "c10::BFloat16"):
    """Nothing but one product."""

    def fill(trace: DeviceTrace, at: float) -> None:
        trace.launch("aten::mm", kernel, at + 5, at + 20, us, **product(m, n, k, kind))

    return fill


def many_kernels(us: float) -> Callable[[DeviceTrace, float], None]:
    """Twenty products, launched one every 49 µs."""

    def fill(trace: DeviceTrace, at: float) -> None:
        for i in range(20):
            sizes = product(1408, 1536, 4096, "c10::BFloat16")
            trace.launch("aten::mm", GEMM, at + 49 * i, at + 49 * i + 8, us, **sizes)

    return fill


def exchange(begins: float, us: float) -> Callable[[DeviceTrace, float], None]:
    """A product, and an all-reduce of 250 µs that begins some time after the step."""

    def fill(trace: DeviceTrace, at: float) -> None:
        gemm(1408, 1536, 4096, us)(trace, at)
        trace.launch("c10d::allreduce_", NCCL, at + 15, at + begins, 250, stream=20)

    return fill


def reading(has_read: bool) -> Callable[[DeviceTrace, float], None]:
    """A product, a value that is read, and another product that is launched after it."""

    def fill(trace: DeviceTrace, at: float) -> None:
        gemm(1408, 1536, 4096, 400)(trace, at)
        if has_read:
            trace.launch(
                "aten::item", "Memcpy DtoH (Device -> Pageable)", at + 30, at + 420, 2,
                category="gpu_memcpy", call="cudaMemcpyAsync", call_us=395,
            )  # fmt: skip
            gemm(1408, 1536, 4096, 300)(trace, at + 600)
        else:
            gemm(1408, 1536, 4096, 560)(trace, at + 401)

    return fill


def copied(memory: str) -> Callable[[DeviceTrace, float], None]:
    """A batch that is copied for 280 µs from some kind of memory, and a product."""

    def fill(trace: DeviceTrace, at: float) -> None:
        name = f"Memcpy HtoD ({memory} -> Device)"
        trace.launch("aten::copy_", name, at + 5, at + 10, 280, category="gpu_memcpy")
        gemm(1408, 1536, 4096, 690)(trace, at + 290)

    return fill


def moved(us: float, n: int) -> Callable[[DeviceTrace, float], None]:
    """A product, and activations behind it."""

    def fill(trace: DeviceTrace, at: float) -> None:
        gemm(1408, 1536, 4096, 970 - n * us)(trace, at)
        for i in range(n):
            name = ("aten::clamp_min", "aten::mul", "aten::add")[i % 3]
            start = at + 990 - (n - i) * us
            trace.launch(name, RELU.replace("clamp_min", name), at + 20 + i * 10, start, us)

    return fill


@dataclass(frozen=True)
class DevicePair:
    fault: Callable[[DeviceTrace, float], None]
    twin: Callable[[DeviceTrace, float], None]
    told: dict[str, Any] = field(default_factory=dict)


DEVICE_PAIRS = {
    "launch_gaps": DevicePair(many_kernels(12), many_kernels(47)),
    "waves": DevicePair(gemm(1408, 1664, 4096), gemm(1408, 1536, 4096)),
    "thin_products": DevicePair(gemm(8, 16_896, 4096), gemm(2816, 3072, 4096)),
    "idle_tensor_cores": DevicePair(
        gemm(1408, 1536, 4096, kernel=SGEMM), gemm(1408, 1536, 4096, kernel=GEMM)
    ),
    "autocast_missed": DevicePair(
        gemm(1408, 3072, 4096, kernel=SGEMM, kind="float"), gemm(1408, 1536, 4096)
    ),
    "exposed_communication": DevicePair(exchange(725, 700), exchange(300, 960)),
    "syncs": DevicePair(reading(True), reading(False)),
    "elementwise": DevicePair(moved(60, 6), moved(20, 6)),
    "dominant_op": DevicePair(moved(400, 1), moved(100, 1)),
}
