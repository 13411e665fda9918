"""A trace of a training on a GPU, as kineto writes one, put together by hand.

host    [loader][launch a][launch b][nccl][item ..wait..]      [python][launch ...
device                 [a     ][b   ]                    ......
                        [nccl    ]
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.chronometer.profile.analyse import Left, analyse
from hotlap.chronometer.profile.sums import Roof
from hotlap.chronometer.profile.trace import read_trace
from hotlap.records.profile import RankProfile

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
SGEMM = "ampere_sgemm_128x64_tn"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::clamp_min>"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP_US = 1000.0
N_SMS = 132
LOG = [{"window": ".times.json", "first_step": 9, "device": "NVIDIA H200"}]


class DeviceTrace:
    """Collects events; every launch gets an operator, a runtime call and a kernel."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._ids = 0

    def add(
        self, category: str, name: str, at: float, us: float, tid: object = 1, **args: Any
    ) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": tid, "ts": at, "dur": us,
             "args": args}
        )  # fmt: skip

    def mark(self, at: float) -> None:
        self.add("user_annotation", "hotlap.step", at, 0.5)

    def launch(
        self,
        operator: str,
        kernel: str,
        host_at: float,
        at: float,
        us: float,
        stream: int = 7,
        category: str = "kernel",
        call: str = "cudaLaunchKernel",
        call_us: float = 3.0,
        **args: Any,
    ) -> None:
        """An operator on the host that starts something on the device."""
        self._ids += 1
        known = {"External id": self._ids}
        self.add("cpu_op", operator, host_at, call_us + 2, **known, **args)
        link = {"correlation": 1000 + self._ids, **known}
        self.add("cuda_runtime", call, host_at + 1, call_us, **link)
        self.add(category, kernel, at, us, tid=stream, device=0, stream=stream, **link)

    def write(self, path: Path) -> Path:
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": N_SMS}],
            "traceEvents": [
                {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0, "args": {}},
                *self.events,
            ],
        }
        packed = gzip.compress(json.dumps(document, indent=2).encode())
        path.write_bytes(packed)
        return path


def product(m: int, n: int, k: int, kind: str) -> dict[str, Any]:
    """The inputs of aten::mm, as the profiler writes them."""
    return {
        "Input Dims": [[m, k], [k, n]],
        "Input type": [kind, kind],
        "Concrete Inputs": ["", ""],
    }


def training(n_steps: int = 3) -> DeviceTrace:
    """Of a 1000 µs step the device is idle for 500: 199 for data, 200 after a wait, 101 else.

    An all-reduce of 200 µs lies with 100 behind the second product.
    """
    trace = DeviceTrace()
    for step in range(n_steps):
        at = 10_000 + step * STEP_US
        trace.mark(at)
        trace.add("user_annotation", "enumerate(DataLoader)#_Iter.__next__", at + 1, 199)
        trace.launch(
            "aten::mm", GEMM, at + 210, at + 300, 200, **product(2048, 1152, 512, "c10::BFloat16")
        )
        trace.launch("aten::mm", SGEMM, at + 220, at + 500, 100, **product(256, 256, 64, "float"))
        trace.launch("c10d::allreduce_", NCCL, at + 230, at + 500, 200, stream=20)
        trace.launch(
            "aten::item", "Memcpy DtoH (Device -> Pageable)", at + 240, at + 700, 2,
            category="gpu_memcpy", call="cudaMemcpyAsync", call_us=465,
        )  # fmt: skip
        trace.launch("aten::clamp_min", RELU, at + 895, at + 902, 98)
    trace.mark(10_000 + n_steps * STEP_US)
    return trace


def profile_of(trace: DeviceTrace, tmp_path: Path, roof: Roof | None = None) -> RankProfile:
    """The profile of a trace that went through a file; the same one serves for the lines."""
    read = read_trace(trace.write(tmp_path / "trace.json.gz"))
    place = {"line": 7, "function": "main", "module": "", "owner": "user", "is_backward": False}
    items = [e for e in trace.events if e["name"] == "aten::item" and e["ts"] > 11_000]
    sites = {
        "sites": [{"file": "train.py", **place}],
        "operators": {str(item["args"]["External id"]): 0 for item in items[:1]},
    }
    left = Left(0, "node", 1, LOG, read, replace(read, sites=sites))
    return analyse(left, lambda device, dtypes: roof, str).profile
