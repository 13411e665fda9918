"""The network: interfaces, InfiniBand ports, and whether adapters reach GPU memory."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from hotlap.machine.files import children, positive, read, read_word
from hotlap.records.system import InfiniBand, Interface, Network

_ASK_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h
_GPUDIRECT_MODULES = ("nvidia_peermem", "nv_peer_mem")


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface of this host."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            answer = fcntl.ioctl(asker.fileno(), _ASK_ADDRESS, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def find_network(
    root: Path = Path("/"), address_of: Callable[[str], str | None] = address_of
) -> Network:
    """All interfaces but the loopback, and all InfiniBand ports."""
    interfaces = [
        _interface(folder, address_of)
        for folder in children(root / "sys/class/net")
        if folder.name != "lo" and (folder / "operstate").exists()
    ]
    ports = [
        _port(device.name, folder)
        for device in children(root / "sys/class/infiniband")
        for folder in children(device / "ports")
        if folder.name.isdigit()
    ]
    return Network(tuple(interfaces), tuple(ports), _is_gpudirect(root))


def _interface(folder: Path, address_of: Callable[[str], str | None]) -> Interface:
    state = read_word(folder / "operstate")
    return Interface(
        name=folder.name,
        # Virtual interfaces say "unknown" where they work.
        is_up=None if state is None else state in ("up", "unknown"),
        speed_mbit_per_s=positive(read_word(folder / "speed")),
        address=address_of(folder.name),
    )


def _port(device: str, folder: Path) -> InfiniBand:
    rate = (read_word(folder / "rate") or "").split()  # "200 Gb/sec (4X HDR)"
    try:
        rate_gbit = float(rate[0])
    except (IndexError, ValueError):
        rate_gbit = None
    return InfiniBand(
        device=device,
        port=int(folder.name),
        is_active="ACTIVE" in (read_word(folder / "state") or ""),
        rate_gbit_per_s=rate_gbit,
        link_layer=read_word(folder / "link_layer"),
    )


def _is_gpudirect(root: Path) -> bool | None:
    modules = read(root / "proc/modules")
    if modules is None:
        return None
    loaded = {line.split()[0] for line in modules.splitlines() if line.split()}
    return any(name in loaded for name in _GPUDIRECT_MODULES)
