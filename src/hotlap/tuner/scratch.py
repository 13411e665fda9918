"""A scratch copy of the working folder: trials run in it, so that the user's files stay theirs.

Files are copied, so that a trial that writes over a checkpoint writes over its copy. Large files
and folders of very many files are data: they are linked, and looked at again when all is done.
A symlink is taken for what it leads to: a folder of checkpoints behind one is copied as well.

    <temporary folder>/hotlap-XXXXXXXX/hotlap-owner.txt  the process that will remove it
                                      /<folder's name>   the copy
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.tuner.contents import Contents

MAX_COPIED_BYTES = 16 << 20
"""A larger file is linked, unless its name says that a training writes it."""
MAX_ENTRIES = 2000
"""A folder with more files than this is data: linked as a whole."""
OUTPUT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".log", ".out", ".csv", ".json", ".txt")
MAX_OUTPUT_BYTES = 2 << 30
MAX_FILES = 20_000
MAX_TOTAL_BYTES = 8 << 30
"""What is worth copying: beyond it the folder is somebody's home and no project."""
MAX_FOLLOWED_FILES = 2000
MAX_FOLLOWED_BYTES = 2 << 30
"""What is copied from behind all symlinks together; what is more is linked."""
SKIPPED = {".hotlap", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
LINKED = {".git", ".venv", "venv", "node_modules"}
"""Not a training's output, however many small files they hold."""
PREFIX = "hotlap-"
OWNER = "hotlap-owner.txt"


class Scratch:
    """A temporary copy of a folder; a context manager that removes it."""

    def __init__(self, origin: Path, where: Path | None = None) -> None:
        self.origin = origin.resolve()
        self._where = where
        self._linked: dict[Path, tuple[int, int]] = {}
        self._copies: dict[Path, Path] = {}
        """The copy of each folder that was copied as a whole: the origin, and those behind links"""
        self._sources: dict[Path, Path] = {}
        """What each file of the copy is a copy of."""
        self._n_files, self._n_bytes = 0, 0
        self._n_followed_files, self._n_followed_bytes = 0, 0

    def __enter__(self) -> Scratch:
        try:
            self._root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._where)).resolve()
        except OSError as error:
            where = self._where or "(the temporary folder)"
            raise UsageError(f"--scratch {where} cannot be used: {error.strerror}") from None
        self.folder = self._root / (self.origin.name or "work")
        self._copies[self.origin] = self.folder
        try:
            (self._root / OWNER).write_text(_identity(str(os.getpid())))
            _remove_abandoned(self._root.parent)
            self._copy(self.origin, self.folder)
            self._contents = Contents(self.folder, self._sources, SKIPPED)
        except OSError as error:
            self.__exit__()
            raise UsageError(
                f"the copy of {self.origin} in {self._root.parent} cannot be made: {error}; "
                "--scratch DIR names another place"
            ) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _copy(self, source: Path, target: Path) -> None:
        try:
            entries = sorted(os.scandir(source), key=lambda entry: entry.name)
        except PermissionError:
            return  # what cannot be read by us cannot be read by the training
        target.mkdir()
        for entry in entries:
            here, there = source / entry.name, target / entry.name
            if entry.name in SKIPPED or here == self._root:
                continue
            if entry.name in LINKED:
                os.symlink(os.path.realpath(here), there)
            elif entry.is_symlink():
                self._follow(here, there)
            elif here in self._copies:  # met again from above, through a link to a parent
                os.symlink(self._copies[here], there)
            elif entry.is_dir():
                if self._is_data(here):
                    self._link(here, there)
                else:
                    self._copy(here, there)
            elif entry.is_file():
                self._copy_file(here, there, entry.stat().st_size)

    def _follow(self, here: Path, there: Path) -> None:
        """Do with a symlink as with what it leads to."""
        real = Path(os.path.realpath(here))
        copied = self._copy_of(real)
        if copied is not None:
            os.symlink(copied, there)
        elif not os.path.exists(real):
            os.symlink(os.readlink(here), there)
        elif not os.access(real, os.W_OK) or not (real.is_dir() or real.is_file()):
            os.symlink(real, there)
        elif real.is_dir() and self._fits(_count_below(real)):
            self._copies[real] = there
            self._copy(real, there)
        elif real.is_file() and not _is_program(real) and self._fits(1):
            self._copy_file(real, there, real.stat().st_size)
        else:
            self._link(real, there)

    def _copy_of(self, path: Path) -> Path | None:
        """Where the copy of it is or will be, if it lies in a folder that is copied."""
        for folder, copy in self._copies.items():
            if path.is_relative_to(folder):
                inside = path.relative_to(folder)
                if SKIPPED.isdisjoint(inside.parts):
                    return copy / inside
        return None

    def _fits(self, n_files: int) -> bool:
        """Whether so many more files behind symlinks are to be copied; counts them if so."""
        if self._n_followed_files + n_files > MAX_FOLLOWED_FILES:
            return False
        self._n_followed_files += n_files
        return True

    @staticmethod
    def _is_data(folder: Path) -> bool:
        if not os.access(folder, os.R_OK | os.X_OK):
            return False
        with os.scandir(folder) as entries:
            return (
                sum(1 for _, _ in zip(range(MAX_ENTRIES + 1), entries, strict=False)) > MAX_ENTRIES
            )

    def _copy_file(self, here: Path, there: Path, n_bytes: int) -> None:
        is_output = here.suffix in OUTPUT_SUFFIXES and n_bytes <= MAX_OUTPUT_BYTES
        is_copied = n_bytes <= MAX_COPIED_BYTES or is_output
        if here.is_relative_to(self.origin):
            self._count(n_bytes if is_copied else 0)
        elif is_copied:
            is_copied = self._n_followed_bytes + n_bytes <= MAX_FOLLOWED_BYTES
            self._n_followed_bytes += n_bytes if is_copied else 0
        if is_copied:
            try:
                shutil.copy2(here, there)
                self._sources[there] = here
                return
            except PermissionError:
                pass  # what cannot be read cannot be harmed either
        self._link(here, there)

    def _count(self, n_bytes: int) -> None:
        self._n_files += 1
        self._n_bytes += n_bytes
        if self._n_files > MAX_FILES or self._n_bytes > MAX_TOTAL_BYTES:
            raise UsageError(
                f"{self.origin} holds too much for a copy of it (over {MAX_FILES:,} files, or "
                f"{MAX_TOTAL_BYTES >> 30} GiB of small ones and checkpoints); start in the "
                "project's own folder, or run the trials here with --in-place"
            )

    def _link(self, here: Path, there: Path) -> None:
        os.symlink(here, there)
        status = here.stat()
        self._linked[here] = (status.st_mtime_ns, status.st_size)

    def changed(self) -> list[Path]:
        """Linked files and folders of the user's that are not as they were."""
        found = []
        for path, before in self._linked.items():
            try:
                status = path.stat()
            except OSError:
                found.append(path)
                continue
            if (status.st_mtime_ns, status.st_size) != before:
                found.append(path)
        return found

    def written(self) -> list[Path]:
        """What trials have written into the copy, as seen from there."""
        return [path.relative_to(self.folder) for path in self._contents.written()]

    def put_back(self) -> None:
        """Have the copy hold what it held at first."""
        self._contents.put_back()

    def words(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command's words: paths into the folder lead into the copy, others where they led."""
        return tuple(self._word(word) for word in command)

    def _word(self, word: str) -> str:
        if _is_path(word):
            return self._path(word)
        name, equals, value = word.partition("=")
        return f"{name}={self._path(value)}" if equals and _is_path(value) else word

    def _path(self, text: str) -> str:
        path = _without_dots(self.origin / text)
        inside = self._inside(path)
        if inside is None:
            leads_out = text.startswith("..") and os.path.exists(path)
            found = path if leads_out else None
        elif (SKIPPED | LINKED).isdisjoint(inside.parts):
            found = self.folder / inside
        else:  # it is not in the copy, or the same there: an interpreter keeps its own name
            found = self.origin / inside
        slash = "/" if text.endswith("/") else ""  # scripts may put a file's name behind it
        return text if found is None else f"{found}{slash}"

    def _inside(self, path: Path) -> Path | None:
        """The path from the origin on, if it lies there: by the names it has, also of links."""
        for above in (*reversed(path.parents), path):
            real = Path(os.path.realpath(above))
            if real.is_relative_to(self.origin):
                return real.relative_to(self.origin) / path.relative_to(above)
        return None

    def original(self, file: str) -> str:
        """The user's own file that a file of the copy, or of an earlier copy, stands for."""
        path = Path(file)
        if path.is_relative_to(self.folder):
            return str(self.origin / path.relative_to(self.folder))
        for above in path.parents:
            is_copy = re.fullmatch(rf"{PREFIX}\w{{8}}", above.parent.name)
            if is_copy and above.name == self.folder.name:
                ours = self.origin / path.relative_to(above)
                return str(ours) if ours.exists() else file
        return file


def _is_program(file: Path) -> bool:
    """Whether it needs what lies beside it: a script's imports, an interpreter's libraries."""
    is_executable = os.access(file, os.X_OK) and file.suffix not in OUTPUT_SUFFIXES
    return file.suffix == ".py" or is_executable


def _count_below(folder: Path) -> int:
    """Files and folders below, links not followed; no more than are needed to say too many."""
    return sum(1 for _ in islice(_below(folder), MAX_FOLLOWED_FILES + 1))


def _below(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.path
                if entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED | LINKED:
                    yield from _below(Path(entry.path))
    except PermissionError:
        return  # not copied either


def _is_path(word: str) -> bool:
    """Whether it would be another place, or the user's own one, if it were used in the copy."""
    return word.startswith("/") or Path(word).parts[:1] == ("..",)


def _without_dots(path: Path) -> Path:
    """The path without `..`; names of links behind the last one are kept."""
    if ".." not in path.parts:
        return path
    n_behind = path.parts[::-1].index("..")
    n_before = len(path.parts) - n_behind
    return Path(os.path.realpath(Path(*path.parts[:n_before])), *path.parts[n_before:])


def _remove_abandoned(where: Path) -> None:
    """Remove copies whose tuner was killed before it could."""
    for file in where.glob(f"{PREFIX}*/{OWNER}"):
        root = file.parent
        try:
            is_own = root.lstat().st_uid == os.getuid() and not root.is_symlink()
            owner = file.read_text(errors="replace") if is_own else ""
        except OSError:
            continue
        if _is_gone(owner):
            shutil.rmtree(root, ignore_errors=True)


def _is_gone(owner: str) -> bool:
    """Whether a process of this host and container has ended; of others it is not known."""
    host_and_container = _identity(str(os.getpid())).split()[:2]
    words = owner.split()
    is_known = len(words) == 4 and words[:2] == host_and_container
    return is_known and _identity(words[2]) != owner


def _identity(pid: str) -> str:
    """What a process shares with none of another time, host or container; empty if it ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        state, started = status[0], status[19]
        container = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    is_running = state not in ("Z", "X")
    return f"{socket.gethostname()} {container} {pid} {started}" if is_running else ""
