"""What a folder holds at one moment, so that it can be put back to that later.

A file is known by its size and the time of its last change. Links are not followed: where they lead
is somebody else's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

Stamp = tuple[str | int, ...]


class Contents:
    """Of a folder, as it is when this is made."""

    def __init__(self, folder: Path, sources: Mapping[Path, Path], left_out: Collection[str]):
        self._folder = folder
        self._sources = sources
        """What each file in it is a copy of."""
        self._left_out = left_out
        """Names of folders that may hold anything."""
        self._before = self._now()

    def written(self) -> list[Path]:
        """What is new, or another one, or gone; those above go first."""
        now = self._now()
        return sorted(p for p in {*self._before, *now} if self._before.get(p) != now.get(p))

    def put_back(self) -> None:
        """Make it what it was, as far as the system lets us."""
        written = self.written()
        for path in reversed(written):
            with contextlib.suppress(OSError):
                is_folder = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if is_folder else path.unlink()
        for path in written:
            with contextlib.suppress(OSError):
                if path in self._before:
                    self._make_again(path, *self._before[path])

    def _make_again(self, path: Path, kind: str | int, *more: str | int) -> None:
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(str(more[0]))
        else:
            shutil.copy2(self._sources[path], path)

    def _now(self) -> dict[Path, Stamp]:
        return dict(self._below(self._folder))

    def _below(self, folder: Path) -> Iterator[tuple[Path, Stamp]]:
        for path in _entries(folder):
            if path.name in self._left_out:
                continue
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield path, ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                yield path, ("folder",)
                yield from self._below(path)
            else:
                yield path, ("file", status.st_size, status.st_mtime_ns)


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where that may not be looked at."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
