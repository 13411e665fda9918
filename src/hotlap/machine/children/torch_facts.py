"""What torch is, how it was built and what it sees; then a small product in each data type.

torch_facts facts float32 bfloat16
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hotlap.machine.child import tell

FACTS = "facts"


def main(argv: Sequence[str]) -> None:
    """Tell the facts where they are asked for, then of each product how it begins and ends."""
    if FACTS in argv:
        tell({"image": _try(_image)})
    import torch

    if FACTS in argv:
        tell({"torch": _facts(torch)})
    for name in (word for word in argv if word != FACTS):
        tell({"begin": name})
        tell({"done": name, "state": _product(torch, name)})


def _facts(torch: Any) -> dict[str, Any]:
    config = _try(torch.__config__.show) or ""
    cuda = torch.version.cuda
    is_available = bool(_try(torch.cuda.is_available))
    return {
        "version": str(torch.__version__),
        "cuda": cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": _cudnn(torch),
        "nccl": _try(lambda: ".".join(map(str, torch.cuda.nccl.version()))) if cuda else None,
        "arch_list": _try(torch.cuda.get_arch_list) or [],
        "cpu_capability": _try(torch.backends.cpu.get_cpu_capability),
        "blas": _setting(config, "BLAS_INFO"),
        "is_mkldnn": _try(torch.backends.mkldnn.is_available),
        "is_debug": bool(torch.version.debug),
        "is_cuda_available": is_available,
        "why_no_cuda": "" if is_available else _why_no_cuda(torch),
        "devices": _devices(torch) if is_available else [],
        "n_threads": torch.get_num_threads(),
        "n_interop_threads": torch.get_num_interop_threads(),
        "matmul_precision": str(_try(torch.get_float32_matmul_precision)),
        "is_tf32_matmul": _try(lambda: torch.backends.cuda.matmul.allow_tf32) if cuda else None,
        "is_tf32_conv": _try(lambda: torch.backends.cudnn.allow_tf32) if cuda else None,
        "is_cudnn_enabled": _try(lambda: torch.backends.cudnn.enabled) if cuda else None,
        "allocator": _try(_allocator) or "unknown",
        "is_deterministic": bool(_try(torch.are_deterministic_algorithms_enabled)),
    }


def _try(read: Callable[[], Any]) -> Any:
    """A fact that this torch may not have is None."""
    try:
        return read()
    except Exception:
        return None


def _cudnn(torch: Any) -> str | None:
    number = _try(torch.backends.cudnn.version)
    if not number:
        return None
    major_at = 10_000 if number >= 90_000 else 1_000  # 91002 is 9.10.2, 8902 is 8.9.2
    return f"{number // major_at}.{number % major_at // 100}.{number % 100}"


def _setting(config: str, name: str) -> str | None:
    found = re.search(rf"\b{name}=([^,\s]+)", config)
    return found[1] if found else None


def _why_no_cuda(torch: Any) -> str:
    if not torch.version.cuda and not getattr(torch.version, "hip", None):
        return "torch was built for the CPU alone"
    try:
        torch.cuda.init()
    except Exception as error:
        lines = str(error).splitlines()
        return lines[0][:200] if lines else type(error).__name__
    return "torch sees no device"


def _devices(torch: Any) -> list[dict[str, Any]]:
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "index": index,
                "uuid": str(getattr(properties, "uuid", "")) or None,
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "n_sms": properties.multi_processor_count,
            }
        )
    return devices


def _product(torch: Any, name: str) -> str:
    """Large enough for the kernels that a training uses."""
    try:
        ones = torch.ones(256, 256, dtype=getattr(torch, name))
        result = (ones @ ones).to(torch.float32)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "usable" if bool((result == 256).all()) else "is wrong"


def _allocator() -> str:
    """The one that is loaded, whatever a variable asks for."""
    loaded = Path("/proc/self/maps").read_text(errors="replace")
    other = next((name for name in ("tcmalloc", "jemalloc") if f"lib{name}" in loaded), None)
    return other or platform.libc_ver()[0] or "unknown"


def _image() -> dict[str, Any]:
    import PIL
    from PIL import features

    is_turbo = features.check_feature("libjpeg_turbo")
    return {
        "pillow": PIL.__version__,
        "is_simd": "post" in PIL.__version__,  # Pillow-SIMD is numbered 9.5.0.post2
        "libjpeg_turbo": features.version_feature("libjpeg_turbo") if is_turbo else None,
    }
