"""What this host is: its processors and memory, and the share of them that this process may use.

A node of 64 cores on which a job has 4 starves a loader that is tuned for 64, so the count that
matters is the allocated one. Everything comes from files under /proc and /sys, and each of them may
be missing: what cannot be read is None, and nothing here raises.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotlap.machine.files import count_cpu_list, field, least, positive, read, word

# cgroup v1 has no word for "no limit": it writes the largest number of pages, in bytes.
_NO_LIMIT_BYTES = 2**60

# Arm kernels print numbers where x86 prints a model name. These are Arm's own server cores, from
# arch/arm64/include/asm/cputype.h of Linux; 0x41 is Arm as the implementer.
_ARM_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
}


@dataclass(frozen=True, slots=True)
class Host:
    """One node as this process sees it."""

    hostname: str | None
    cpu_model: str | None
    n_cpus: int | None
    """Logical CPUs of the machine."""
    n_cpus_allocated: int | None
    """Logical CPUs that this process may use."""
    memory_bytes: int | None
    """Of the machine."""
    memory_limit_bytes: int | None
    """Of this process's control group; None where there is no limit."""
    kernel: str | None
    python: str
    slurm_job: str | None = None
    """Its number, as `12` or `12_3` for a task of an array, where it runs in one."""


def describe_host(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Host:
    """The host that this process runs on; another `root` describes a recorded one."""
    cpuinfo = read(root / "proc/cpuinfo")
    n_cpus = _count_cpus(root, cpuinfo)
    return Host(
        hostname=word(read(root / "proc/sys/kernel/hostname")),
        cpu_model=_cpu_model(cpuinfo),
        n_cpus=n_cpus,
        n_cpus_allocated=least((n_cpus, *cpu_bounds(root, environ).values())),
        memory_bytes=_memory_bytes(root),
        memory_limit_bytes=least(_memory_limit(f) for f in _cgroup_folders(root, "memory")),
        kernel=word(read(root / "proc/sys/kernel/osrelease")),
        python=platform.python_version(),
        slurm_job=_slurm_job(environ),
    )


def cpu_bounds(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """How many logical CPUs each of the things leaves that allocate them."""
    bounds = {
        "affinity": count_cpu_list(field(read(root / "proc/self/status"), "Cpus_allowed_list")),
        "cgroup quota": least(_cpu_quota(folder) for folder in _cgroup_folders(root, "cpu")),
        "Slurm": positive(environ.get("SLURM_CPUS_PER_TASK")),
    }
    return {name: n for name, n in bounds.items() if n is not None}


def _slurm_job(environ: Mapping[str, str]) -> str | None:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """What the CPU advertises; a virtual machine may advertise what it cannot do."""
    return frozenset((field(read(root / "proc/cpuinfo"), "flags") or "").split())


def _cpu_model(cpuinfo: str | None) -> str | None:
    # x86 has "model name", POWER has "cpu", Arm has neither.
    model = field(cpuinfo, "model name") or field(cpuinfo, "cpu")
    implementer, part = field(cpuinfo, "CPU implementer"), field(cpuinfo, "CPU part")
    if model is not None or implementer is None or part is None:
        return model
    return _ARM_CORES.get((implementer, part), f"implementer {implementer}, part {part}")


def _count_cpus(root: Path, cpuinfo: str | None) -> int | None:
    online = count_cpu_list(read(root / "sys/devices/system/cpu/online"))
    if online is not None:
        return online
    entries = (line.partition(":")[0].strip() for line in (cpuinfo or "").splitlines())
    return sum(entry == "processor" for entry in entries) or None


def _memory_bytes(root: Path) -> int | None:
    words = (field(read(root / "proc/meminfo"), "MemTotal") or "").split()
    kib = positive(words[0]) if words else None
    return None if kib is None else kib * 1024


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Where the limits of one controller on this process may stand, in cgroup v1 and v2."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if not controllers:  # v2: one tree for all controllers
            folders += _with_parents(mount, path)
        elif controller in controllers.split(","):  # v1: mounted as "cpu" or as "cpu,cpuacct"
            folders += _with_parents(mount / controller, path)
            folders += _with_parents(mount / controllers, path)
    return folders


def _with_parents(mount: Path, path: str) -> list[Path]:
    """A group's folder and those above it, up to the mount: a limit on any of them binds.

    In a container the path may be the host's and lead nowhere; the mount itself is then the
    container's own group.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _cpu_quota(folder: Path) -> int | None:
    """Whole CPUs that a group's quota comes to, rounded up."""
    text = read(folder / "cpu.max")  # v2: "QUOTA PERIOD", where no quota is "max"
    if text is None:  # v1: a file each, where no quota is -1
        text = f"{read(folder / 'cpu.cfs_quota_us')} {read(folder / 'cpu.cfs_period_us')}"
    quota_us, period_us = ([positive(word) for word in text.split()] + [None, None])[:2]
    if quota_us is None or period_us is None:
        return None
    return -(-quota_us // period_us)


def _memory_limit(folder: Path) -> int | None:
    limit = positive(read(folder / "memory.max") or read(folder / "memory.limit_in_bytes"))
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None
