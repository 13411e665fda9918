"""The CPU: what it is, which part of it is this process's, and how it hangs together."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from hotlap.machine.files import children, cpu_list, field, positive, read, read_word
from hotlap.machine.host import cpu_bounds, cpu_flags, describe_host
from hotlap.machine.isa import find_instructions
from hotlap.records.system import Cpu, NumaNode


def find_cpu(
    root: Path = Path("/"), environ: Mapping[str, str] = os.environ, is_tried: bool = True
) -> Cpu:
    """The CPU; `is_tried` runs an instruction of each class, which says nothing of another root."""
    host = describe_host(root, environ)
    cores, sockets = _cores(root)
    return Cpu(
        model=host.cpu_model,
        architecture=platform.machine() or None,
        n_cpus=host.n_cpus,
        n_cores=cores,
        n_sockets=sockets,
        n_allocated=host.n_cpus_allocated,
        bounds=cpu_bounds(root, environ),
        governor=read_word(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_1min=_load(root),
        is_virtual=_is_virtual(root),
        instructions=find_instructions(root, is_tried),
        numa=_numa(root),
    )


def _cores(root: Path) -> tuple[int | None, int | None]:
    """Physical cores and sockets, counted by the names that the kernel gives them."""
    pairs = set()
    for folder in children(root / "sys/devices/system/cpu"):
        socket = read_word(folder / "topology/physical_package_id")
        core = read_word(folder / "topology/core_id")
        if socket is not None and core is not None:
            pairs.add((socket, core))
    return len(pairs) or None, len({socket for socket, _ in pairs}) or None


def _load(root: Path) -> float | None:
    words = (read(root / "proc/loadavg") or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def _is_virtual(root: Path) -> bool | None:
    flags = cpu_flags(root)
    return "hypervisor" in flags if flags else None


def _numa(root: Path) -> tuple[NumaNode, ...]:
    allowed = cpu_list(field(read(root / "proc/self/status"), "Cpus_allowed_list"))
    nodes = []
    for folder in children(root / "sys/devices/system/node"):
        index = folder.name.removeprefix("node")
        if not index.isdigit():
            continue
        cpus = cpu_list(read_word(folder / "cpulist"))
        nodes.append(
            NumaNode(
                index=int(index),
                n_cpus=len(cpus),
                n_cpus_allocated=len(cpus & allowed) if allowed else None,
                memory_bytes=_node_memory(folder),
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.index))


def _node_memory(folder: Path) -> int | None:
    for line in (read(folder / "meminfo") or "").splitlines():
        words = line.split()  # "Node 0 MemTotal:  197 kB"
        if len(words) >= 4 and words[2] == "MemTotal:":
            kib = positive(words[3])
            return None if kib is None else kib * 1024
    return None
