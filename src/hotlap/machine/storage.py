"""What lies under a path of data: the kind of file system, and how fast it reads.

Nothing of the user's is written to, and nothing is thrown out of the page cache. Files that are
there are read where enough of them are not in the cache; else some of our own are written beside
them for a moment, where that is allowed and there is room.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotlap.machine.clock import now_s
from hotlap.machine.files import read
from hotlap.records.system import Storage

NETWORK = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "glusterfs", "afs"),
    *(
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph-fuse",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.juicefs",
    ),
    *("wekafs", "panfs", "orangefs", "pvfs2", "9p", "virtiofs", "daos", "fuse.dfuse"),
)
MEMORY = ("tmpfs", "ramfs")
NO_DATA = (
    *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "bpf"),
    *("configfs", "securityfs", "mqueue", "hugetlbfs", "pstore", "efivarfs", "autofs"),
)
"""Faces of the kernel: reading some of their files does something, so none is read."""
UNKNOWN = ("overlay", "fuse", "squashfs", "aufs")
"""What lies below these is not told."""

MOST_FILES = 200
MOST_SEEN = 5_000
LEAST_FILES = 50
SMALL_BYTES = 128 * 1024
LEAST_BYTES = 16 << 20
BLOCK_BYTES = 1 << 20
ROOM_FACTOR = 20
"""Our own files are written only where this many times their size is free."""
OURS = "files of our own"
THEIRS = "files that are there"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be read and written, and for how long."""

    n_bytes: int = 128 << 20
    seconds: float = 2.0


def find_storage(path: Path, effort: Effort | None, root: Path = Path("/")) -> Storage:
    """The storage under a path; without an effort nothing is measured."""
    mount, filesystem = find_mount(path, read(root / "proc/mounts") or "")
    rates: tuple[float | None, float | None, str] = (None, None, "not measured")
    if filesystem in NO_DATA:
        rates = (None, None, "no place for data")
    elif effort:
        rates = measure(path, effort)
    return Storage(
        path=str(path.resolve()),
        mount=mount,
        filesystem=filesystem,
        kind=_kind(filesystem),
        free_bytes=None if filesystem in NO_DATA else _free(path),
        read_bytes_per_s=rates[0],
        opens_per_s=rates[1],
        measured_on=rates[2],
    )


def find_mount(path: Path, mounts: str) -> tuple[str | None, str | None]:
    """The mount point and the file system that a path lies on, from the text of /proc/mounts."""
    resolved = path.resolve()
    best: tuple[str | None, str | None] = (None, None)
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = words[1].replace("\\040", " ")
        # Of two mounts on one point the later one is seen.
        if resolved.is_relative_to(point) and len(point) >= len(best[0] or ""):
            best = (point, words[2])
    return best


def _kind(filesystem: str | None) -> Literal["local", "network", "memory", "unknown"]:
    if filesystem is None or filesystem in (*UNKNOWN, *NO_DATA):
        return "unknown"
    if filesystem in NETWORK:
        return "network"
    if filesystem.startswith("fuse."):
        return "unknown"
    return "memory" if filesystem in MEMORY else "local"


def _free(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def measure(path: Path, effort: Effort) -> tuple[float | None, float | None, str]:
    """Bytes a second of one reader, small files a second, and what was read."""
    small, large = _cold_files(path, effort.seconds)
    n_large = sum(_size(file) for file in large)
    if len(small) >= LEAST_FILES and n_large >= LEAST_BYTES:
        return _read_rate(large, effort), _open_rate(small, effort), THEIRS
    try:
        rate, opens = _with_our_own(path, effort)
    except OSError as error:
        why = error.strerror or "an error"
        opens_there = _open_rate(small, effort) if len(small) >= LEAST_FILES else None
        rate_there = _read_rate(large, effort) if n_large >= LEAST_BYTES else None
        if opens_there is None and rate_there is None:
            return None, None, f"nothing to read, and files cannot be written there: {why}"
        return rate_there, opens_there, THEIRS
    if len(small) >= LEAST_FILES:
        return rate, _open_rate(small, effort), f"{OURS}; opened: {THEIRS}"
    return rate, opens, OURS


def _cold_files(path: Path, most_s: float) -> tuple[list[Path], list[Path]]:
    """Small and large files below a path that are not in the page cache."""
    small: list[Path] = []
    large: list[Path] = []
    begin = now_s()
    for file, n_bytes in _walk(path):
        if now_s() - begin > most_s:
            break
        kept = small if n_bytes <= SMALL_BYTES else large
        if len(kept) < MOST_FILES and n_bytes and not _is_cached(file, n_bytes):
            kept.append(file)
        if len(small) >= MOST_FILES and len(large) >= MOST_FILES:
            break
    return small, large


def _walk(path: Path) -> Iterator[tuple[Path, int]]:
    n_seen = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            n_seen += 1
            if n_seen > MOST_SEEN:
                return
            file = Path(folder) / name
            if not file.is_symlink() and file.is_file():
                yield file, _size(file)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _is_cached(file: Path, n_bytes: int) -> bool:
    """Whether its first or middle byte would be read without waiting for the storage."""
    try:
        handle = os.open(file, os.O_RDONLY)
    except OSError:
        return True
    try:
        return any(_is_byte_cached(handle, at) for at in (0, n_bytes // 2))
    finally:
        os.close(handle)


def _is_byte_cached(handle: int, at: int) -> bool:
    try:
        return os.preadv(handle, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError:  # this file system cannot say: then it is not looked at
        return True


def _read_rate(files: Sequence[Path], effort: Effort) -> float | None:
    n_bytes, begin = 0, now_s()
    block = bytearray(BLOCK_BYTES)
    for file in files:
        try:
            with file.open("rb", buffering=0) as stream:
                while (n := stream.readinto(block)) and n_bytes < effort.n_bytes:
                    n_bytes += n
                    if now_s() - begin > effort.seconds:
                        return n_bytes / (now_s() - begin)
        except OSError:
            continue
        if n_bytes >= effort.n_bytes:
            break
    return n_bytes / (now_s() - begin) if n_bytes else None


def _open_rate(files: Sequence[Path], effort: Effort) -> float | None:
    n_opened, begin = 0, now_s()
    for file in files:
        try:
            with file.open("rb", buffering=0) as stream:
                stream.read(SMALL_BYTES)
        except OSError:
            continue
        n_opened += 1
        if now_s() - begin > effort.seconds:
            break
    return n_opened / (now_s() - begin) if n_opened else None


def _with_our_own(path: Path, effort: Effort) -> tuple[float | None, float | None]:
    if (_free(path) or 0) < ROOM_FACTOR * effort.n_bytes:
        raise OSError(None, "too little room is free")
    with tempfile.TemporaryDirectory(prefix=".hotlap-probe-", dir=path) as name:
        folder = Path(name)
        large = folder / "large"
        _write(large, effort.n_bytes, effort.seconds)
        small = [folder / f"small-{i}" for i in range(LEAST_FILES)]
        for file in small:
            _write(file, 4096, effort.seconds)
        return _read_rate([large], effort), _open_rate(small, effort)


def _write(file: Path, n_bytes: int, most_s: float) -> None:
    """Write random bytes, which no file system can squeeze, and put them out of the cache."""
    block = os.urandom(min(n_bytes, BLOCK_BYTES))
    begin = now_s()
    with file.open("wb", buffering=0) as stream:
        for _ in range(max(1, n_bytes // len(block))):
            stream.write(block)
            if now_s() - begin > most_s:
                break
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
