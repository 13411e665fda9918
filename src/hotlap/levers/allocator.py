"""Allocator: where tensors on the CPU get their memory, and whether it is kept for the next ones.

When: the model is on the CPU, or batches are made there. As delivered, glibc gives large blocks
back to the system at once, which then has to clear every page of the next ones. 'glibc' tells it to
keep them, 'tcmalloc' and 'jemalloc' are libraries that do, where one is installed. Costs memory
that is kept. Changes nothing of the maths.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.levers.common.edits import Edit, set_environment
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

NAMES = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc.so"),
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
}
PRELOAD, TUNABLES, JEMALLOC = "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF"
KEEP_IN_JEMALLOC = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"


def keep_in_glibc(version: str) -> str:
    """Blocks of less than 1 GiB come from the heap, and less than 8 GiB of it is kept.

    The heap grows for a dozen tensors of a size before it gives their places to the next ones.
    Before 2.35 glibc takes no more than 32 MiB: with more it keeps its own 128 KiB, and no longer
    raises it when larger blocks are freed.
    """
    is_old = tuple(int(part) for part in version.split(".") if part.isdigit()) < (2, 35)
    threshold = 1 << 25 if is_old else 1 << 30
    return f"glibc.malloc.mmap_threshold={threshold}:glibc.malloc.trim_threshold={1 << 33}"


def apply(torch: Any, value: str, process: Process) -> None:
    """The allocator was chosen when the process began: see which one it is."""
    if value == "glibc":
        keep = keep_in_glibc(platform.libc_ver()[1])
        if keep in os.environ.get(TUNABLES, "") and not _preloaded():
            process.did("glibc keeps freed memory")
    elif any(name in _loaded_files() for name in NAMES[value]):
        process.did(f"memory comes from {value}")


def _loaded_files() -> str:
    """What is mapped into this process."""
    try:
        return Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return ""


def _preloaded() -> bool:
    """Whether another allocator is put in front of the system's already."""
    return "malloc" in os.environ.get(PRELOAD, "")


def folders() -> tuple[Path, ...]:
    """Where libraries lie: of the system, and of this Python's own environment."""
    system = [
        path for root in ("/usr/lib", "/lib") for path in sorted(Path(root).glob("*-linux-*"))
    ]
    more = (Path("/usr/lib64"), Path("/usr/lib"), Path("/usr/local/lib"), Path(sys.prefix) / "lib")
    return (*system, *more)


def find_library(value: str, where: tuple[Path, ...]) -> Path | None:
    """The first library of this allocator in some folders."""
    for name in NAMES[value]:
        for folder in where:
            if (folder / name).exists():
                return folder / name
    return None


def values(workload: Workload) -> tuple[str, ...]:
    """What there is on this machine."""
    found = tuple(value for value in NAMES if find_library(value, folders()))
    return (*found, "glibc") if platform.libc_ver()[0] == "glibc" else found


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """The library in front of all others, or the settings of glibc's own."""
    if value == "glibc":
        keep = keep_in_glibc(platform.libc_ver()[1])
        return {TUNABLES: ":".join(filter(None, (os.environ.get(TUNABLES), keep)))}
    library = find_library(value, folders())
    variables = {PRELOAD: " ".join(filter(None, (str(library or ""), os.environ.get(PRELOAD))))}
    if value == "jemalloc" and JEMALLOC not in os.environ:
        variables[JEMALLOC] = KEEP_IN_JEMALLOC
    return variables


def applies(workload: Workload) -> Decision:
    """The host computes or loads, and no other allocator is in use yet."""
    if _preloaded():
        return Decision(False, "another allocator is preloaded already")
    if not values(workload):
        return Decision(False, "neither glibc nor another allocator is on this machine")
    if workload.device != "cpu" and workload.phases_s and workload.share("data") < 0.01:
        return Decision(False, "the model is not on the CPU, and the step does not wait for data")
    return Decision(True, "tensors on the CPU get their memory from the system's allocator")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """The variables to start with."""
    return (set_environment(**environment(value, workload)),)


LEVER = Lever(
    name="allocator",
    summary="freed memory of the CPU is kept for the next tensors",
    changes="nothing",
    risk="safe",
    phases=("data", "forward", "backward", "optimizer"),
    saves=lambda workload: 0.15 if workload.device == "cpu" else 0.03,
    values=values,
    takes=one_of(*NAMES, "glibc"),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
)
