"""The instructions of the CPU: which are advertised, and which can really be used."""

from __future__ import annotations

from pathlib import Path

from hotlap.machine.child import ask
from hotlap.machine.files import field, read
from hotlap.machine.host import cpu_flags
from hotlap.records.system import Instructions, Usable

X86 = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16")
ARM = ("asimd", "bf16", "i8mm", "sve", "sve2")
TIMEOUT_S = 20.0


def find_instructions(root: Path = Path("/"), is_tried: bool = True) -> tuple[Instructions, ...]:
    """The classes that matter to training; those that are advertised are tried."""
    flags = cpu_flags(root)
    if not flags:
        features = (field(read(root / "proc/cpuinfo"), "Features") or "").split()
        return tuple(Instructions(name, name in features, "unknown") for name in ARM if features)
    states = _try([name for name in X86 if name in flags]) if is_tried else {}
    return tuple(Instructions(name, name in flags, states.get(name, "unknown")) for name in X86)


def _try(names: list[str]) -> dict[str, Usable]:
    told = ask("instructions", names, TIMEOUT_S).told
    return {one["name"]: one["state"] for one in told}
