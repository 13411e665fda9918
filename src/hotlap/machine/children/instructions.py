"""Run one instruction of each class that an x86-64 CPU may advertise, each in a forked process.

A virtual machine can advertise what it has not switched on: the first use ends the process. Arm and
POWER have no such list here; for them the advertised flags are all that is known.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import platform
import struct
from collections.abc import Sequence

from hotlap.machine.child import signal_name, tell

_END = "c5f877 c3"  # vzeroupper, ret
CODE = {
    "avx2": f"c5fdfec0 {_END}",  # vpaddd ymm0, ymm0, ymm0
    "fma": f"c4e27db8c0 {_END}",  # vfmadd231ps ymm0, ymm0, ymm0
    "avx512f": f"62f17d48fec0 {_END}",  # vpaddd zmm0, zmm0, zmm0
    "avx512_vnni": f"62f27d4850c0 {_END}",  # vpdpbusd zmm0, zmm0, zmm0
    "avx512_bf16": f"62f27e4852c0 {_END}",  # vdpbf16ps zmm0, zmm0, zmm0
    "avx512_fp16": f"62f57c4858c0 {_END}",  # vaddph zmm0, zmm0, zmm0
    # ldtilecfg [rdi]; tilezero tmm0 to tmm2; tdpbf16ps tmm0, tmm1, tmm2; tilerelease; ret
    "amx_bf16": "c4e2784907 c4e27b49c0 c4e27b49c8 c4e27b49d0 c4e26a5cc1 c4e27849c0 c3",
}
"""By the flag's name in /proc/cpuinfo. What follows a use of vectors is what a compiler puts."""

_ARCH_PRCTL, _ASK_FOR_STATE, _TILE_DATA = 158, 0x1023, 18
# Palette 1; then the bytes a row and the rows of each of eight tiles: 16 rows of 64 bytes.
_TILE_CONFIG = struct.pack("<BB14x8H16x8B8x", 1, 0, *[64] * 8, *[16] * 8)


def main(argv: Sequence[str]) -> None:
    """Tell of each class named in `argv` whether it is usable."""
    for name in argv:
        tell({"name": name, "state": _try(name)})


def _try(name: str) -> str:
    if platform.machine() != "x86_64" or name not in CODE:
        return "unknown"
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()  # its death is the answer
        try:
            _execute(bytes.fromhex(CODE[name]))
        except BaseException:
            os._exit(1)  # memory may not be made executable here: nothing is known
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        died_of = signal_name(os.WTERMSIG(status))
        return "dies" if died_of in ("SIGILL", "SIGSEGV", "SIGFPE", "SIGBUS") else "unknown"
    return "usable" if os.WEXITSTATUS(status) == 0 else "unknown"


def _execute(code: bytes) -> None:
    # The kernel gives a process the state of the tiles only where it asks for it.
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR_STATE, _TILE_DATA)
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    config = ctypes.create_string_buffer(_TILE_CONFIG)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(config))
