"""The host's memory: how much there is, and the limits on it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from hotlap.machine.files import field, positive, read
from hotlap.machine.host import describe_host
from hotlap.records.system import HostMemory


def find_memory(root: Path = Path("/")) -> HostMemory:
    """Of the machine and of this process's control group."""
    host = describe_host(root)
    words = (field(read(root / "proc/meminfo"), "MemAvailable") or "").split()
    available = positive(words[0]) if words else None
    return HostMemory(
        total_bytes=host.memory_bytes,
        available_bytes=None if available is None else available * 1024,
        limit_bytes=host.memory_limit_bytes,
        shared_bytes=_size(root / "dev/shm"),
        locked_limit_bytes=_limit(resource.RLIMIT_MEMLOCK),
        open_files_limit=_limit(resource.RLIMIT_NOFILE),
    )


def _size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
