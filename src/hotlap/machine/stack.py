"""The Stack: whether the software was built for the hardware that it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hotlap.machine.known_bad import find_known_bad, parse_version
from hotlap.records.software import Fit, GpuFit, ImageLibrary, Software, Stack, Torch
from hotlap.records.system import Cpu, Gpu, System

# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""By the major version of CUDA: the oldest driver that runs any minor version of it."""


def find_stack(system: System, software: Software) -> Stack:
    """System and Software against each other."""
    torch = software.torch
    visible = [gpu for gpu in system.gpus if gpu.is_visible]
    driver, driver_how = _fit_driver(torch, software.driver, software.driver_cuda)
    cpu, cpu_how = _fit_cpu(torch, system.cpu)
    decoder, decoder_how = _fit_decoder(software.image)
    return Stack(
        gpus=tuple(fit_gpu(gpu, torch) for gpu in visible if gpu.compute_capability),
        driver=driver,
        driver_how=driver_how,
        cpu_capability=cpu,
        cpu_how=cpu_how,
        decoder=decoder,
        decoder_how=decoder_how,
        allocator=torch.allocator if torch else "unknown",
        n_threads=torch.n_threads if torch else None,
        n_cpus_allocated=system.cpu.n_allocated,
        matmul_precision=_precision(torch.is_tf32_matmul if torch else None, software.environment),
        conv_precision=_precision(torch.is_tf32_conv if torch else None, software.environment),
        known_bad=find_known_bad(_versions(software), bool(visible)),
    )


def fit_gpu(gpu: Gpu, torch: Torch | None) -> GpuFit:
    """Whether the build has code for a GPU.

    Machine code (sm_XY) runs on devices of the same major version and the same or a later minor
    one; PTX (compute_XY) is compiled by the driver for any later device, at the first start.
    """
    capability = gpu.compute_capability or ""

    def answer(state: Fit, how: str) -> GpuFit:
        return GpuFit(gpu.index, capability, state, how)

    if torch is None:
        return answer("unknown", "there is no torch to ask")
    if torch.hip:
        return answer("unknown", "AMD's architectures are not compared")
    if not torch.cuda:
        return answer("does not fit", "torch was built without CUDA")
    device = parse_version(capability)
    if len(device) < 2:
        return answer("unknown", f"the compute capability is {capability or 'unknown'}")
    machine_code, ptx = _archs(torch, "sm_"), _archs(torch, "compute_")
    # '90a' and '100f' are for that device, or family, alone; their plain number is enough here.
    if device in machine_code:
        return answer("fits", f"torch has code for sm_{_joined(device)}")
    if any(arch[0] == device[0] and arch <= device for arch in machine_code):
        return answer("fits", "torch has code for an earlier chip of the same generation")
    if any(arch <= device for arch in ptx):
        return answer("works", "torch has only PTX for it: the driver compiles at the first start")
    has = ", ".join(torch.arch_list) or "nothing"
    return answer("does not fit", f"torch was built for {has}, the GPU is sm_{_joined(device)}")


def _archs(torch: Torch, kind: str) -> list[tuple[int, ...]]:
    """'sm_90a' is (9, 0), 'compute_120' is (12, 0); what is neither is left out."""
    found = [re.match(rf"{kind}(\d+)(\d)", word) for word in torch.arch_list]
    return [(int(one[1]), int(one[2])) for one in found if one]


def _joined(version: tuple[int, ...]) -> str:
    return "".join(map(str, version))


def _fit_driver(
    torch: Torch | None, driver: str | None, driver_cuda: str | None
) -> tuple[Fit, str]:
    if torch is None or not torch.cuda or driver is None:
        return "unknown", "no CUDA build of torch, or no driver"
    built, has = parse_version(torch.cuda), parse_version(driver)
    words = f"driver {driver} for CUDA {torch.cuda}"
    oldest = _OLDEST_DRIVER.get(built[0]) if built else None
    if built and driver_cuda and parse_version(driver_cuda) >= built[:2]:
        return "fits", words
    if oldest is None or not has:
        return "unknown", words
    if has[:1] >= (oldest,):
        return "fits", f"{words}, by compatibility within CUDA {built[0]}"
    return "does not fit", f"{words}: {oldest} or newer is needed"


def _fit_cpu(torch: Torch | None, cpu: Cpu) -> tuple[Fit, str]:
    """What torch's own kernels use against the newest that the CPU can."""
    if torch is None or torch.cpu_capability is None:
        return "unknown", "torch does not tell"
    usable = {one.name for one in cpu.instructions if one.is_advertised and one.state != "dies"}
    best = "AVX512" if "avx512f" in usable else "AVX2" if "avx2" in usable else None
    died = [f"{name} ({how})" for name, how in torch.products.items() if how.startswith("it ended")]
    if died:
        return "does not fit", f"a matrix product on the CPU ends the process: {', '.join(died)}"
    if best is None:
        return "unknown", f"torch uses {torch.cpu_capability}"
    words = f"torch uses {torch.cpu_capability}, the CPU has {best}"
    # torch itself keeps to AVX2 where AVX-512 would lower the clock: only no vectors are a misfit.
    return ("works" if torch.cpu_capability == "DEFAULT" else "fits"), words


def _fit_decoder(image: ImageLibrary | None) -> tuple[Fit, str]:
    if image is None:
        return "unknown", "Pillow is not installed"
    if image.libjpeg_turbo is None:
        return "works", f"Pillow {image.pillow} decodes JPEG without vector instructions"
    resize = "resizes with vector instructions" if image.is_simd else "resizes without vectors"
    return "fits", f"Pillow {image.pillow} with libjpeg-turbo {image.libjpeg_turbo}; {resize}"


def _precision(is_tf32: bool | None, environment: Mapping[str, str]) -> str:
    if is_tf32 is None:
        return "unknown"
    override = environment.get("NVIDIA_TF32_OVERRIDE")  # above what a program asks for
    return "TF32" if (is_tf32 and override != "0") or override == "1" else "fp32"


def _versions(software: Software) -> dict[str, str | None]:
    torch = software.torch
    of_torch = {"torch": torch.version, "cudnn": torch.cudnn, "nccl": torch.nccl} if torch else {}
    return {**software.packages, **of_torch}
