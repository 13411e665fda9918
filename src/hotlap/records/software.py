"""Software and Stack: what is installed, and whether it was built for the hardware it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fit = Literal["fits", "works", "does not fit", "unknown"]
"""'works': it runs, by a detour that costs."""


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """A GPU as torch shows it."""

    index: int
    uuid: str | None
    name: str
    compute_capability: str
    memory_bytes: int
    n_sms: int


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch of this Python, and the state that it starts a training in."""

    version: str
    cuda: str | None
    """The CUDA that it was built with; None in a build without."""
    hip: str | None
    cudnn: str | None
    nccl: str | None
    arch_list: tuple[str, ...]
    cpu_capability: str | None
    """The newest instructions that its own kernels use: 'DEFAULT', 'AVX2', 'AVX512'."""
    blas: str | None
    is_mkldnn: bool | None
    is_debug: bool
    is_cuda_available: bool
    why_no_cuda: str
    devices: tuple[TorchDevice, ...]
    n_threads: int
    n_interop_threads: int
    matmul_precision: str
    is_tf32_matmul: bool | None
    """None where there is no CUDA in the build."""
    is_tf32_conv: bool | None
    is_cudnn_enabled: bool | None
    is_deterministic: bool
    allocator: str
    """Of host memory: 'glibc', 'tcmalloc', 'jemalloc' or 'unknown'."""
    products: dict[str, str]
    """By data type: whether a small matrix product on the CPU runs ('usable'), or how it ended."""


@dataclass(frozen=True, slots=True)
class ImageLibrary:
    """The decoder of images that Python's loaders use."""

    pillow: str
    is_simd: bool
    """Pillow-SIMD, which resizes with vector instructions."""
    libjpeg_turbo: str | None
    """None where Pillow was built with a JPEG library without vector instructions."""


@dataclass(frozen=True, slots=True)
class Python:
    version: str
    executable: str
    is_isolated: bool
    """Whether it is a virtual or conda environment, and not the system's own."""


@dataclass(frozen=True, slots=True)
class Software:
    python: Python
    torch: Torch | None
    why_no_torch: str
    driver: str | None
    driver_cuda: str | None
    """The newest CUDA that the driver knows."""
    packages: dict[str, str]
    compilers: dict[str, str]
    """By name, the version line of each that is on the PATH."""
    image: ImageLibrary | None
    environment: dict[str, str]
    """The variables of a fixed list that are set; nothing else of the environment is kept."""


@dataclass(frozen=True, slots=True)
class GpuFit:
    """One GPU against the architectures that torch was built for."""

    gpu: int
    compute_capability: str
    state: Fit
    how: str


@dataclass(frozen=True, slots=True)
class KnownBad:
    """An installed version that is known to be bad."""

    package: str
    version: str
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class Stack:
    gpus: tuple[GpuFit, ...]
    driver: Fit
    driver_how: str
    cpu_capability: Fit
    cpu_how: str
    decoder: Fit
    decoder_how: str
    allocator: str
    """Of host memory in a process with torch."""
    n_threads: int | None
    """That torch splits one operation into."""
    n_cpus_allocated: int | None
    matmul_precision: str
    """What fp32 matrix products run in on a GPU if a script says nothing: 'fp32' or 'TF32';
    'unknown' in a build without CUDA."""
    conv_precision: str
    known_bad: tuple[KnownBad, ...]
