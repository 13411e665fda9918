"""A scratch copy of the working folder: trials run in it, so that the user's files stay theirs.

Files are copied, so that a trial that writes over a checkpoint writes over its copy. Large files
and folders of very many files are data: they are linked, and looked at again when all is done.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hotlap.errors import UsageError

MAX_COPIED_BYTES = 16 << 20
"""A larger file is linked, unless its name says that a training writes it."""
MAX_ENTRIES = 2000
"""A folder with more files than this is data: linked as a whole."""
OUTPUT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".log", ".out", ".csv", ".json", ".txt")
MAX_OUTPUT_BYTES = 2 << 30
MAX_FILES = 20_000
MAX_TOTAL_BYTES = 8 << 30
"""What is worth copying: beyond it the folder is somebody's home and no project."""
SKIPPED = {".hotlap", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
LINKED = {".git", ".venv", "venv", "node_modules"}
"""Not a training's output, however many small files they hold."""


class Scratch:
    """A temporary copy of a folder; a context manager that removes it."""

    def __init__(self, origin: Path, where: Path | None = None) -> None:
        self.origin = origin.resolve()
        self._where = where
        self._linked: dict[Path, tuple[int, int]] = {}
        self._n_files, self._n_bytes = 0, 0

    def __enter__(self) -> Scratch:
        try:
            self._root = Path(tempfile.mkdtemp(prefix="hotlap-", dir=self._where)).resolve()
        except OSError as error:
            raise UsageError(f"--scratch {self._where} cannot be used: {error.strerror}") from None
        self.folder = self._root / (self.origin.name or "work")
        try:
            self._copy(self.origin, self.folder)
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
            if entry.is_symlink() or entry.name in LINKED:
                os.symlink(here.resolve(), there)
            elif entry.is_dir():
                if self._is_data(here):
                    self._link(here, there)
                else:
                    self._copy(here, there)
            elif entry.is_file():
                self._copy_file(here, there, entry.stat().st_size)

    @staticmethod
    def _is_data(folder: Path) -> bool:
        if not os.access(folder, os.R_OK | os.X_OK):
            return False
        with os.scandir(folder) as entries:
            return (
                sum(1 for _, _ in zip(range(MAX_ENTRIES + 1), entries, strict=False)) > MAX_ENTRIES
            )

    def _copy_file(self, here: Path, there: Path, n_bytes: int) -> None:
        self._count(n_bytes)
        is_output = here.suffix in OUTPUT_SUFFIXES and n_bytes <= MAX_OUTPUT_BYTES
        if n_bytes <= MAX_COPIED_BYTES or is_output:
            try:
                shutil.copy2(here, there)
                return
            except PermissionError:
                pass  # what cannot be read cannot be harmed either
        self._link(here, there)

    def _count(self, n_bytes: int) -> None:
        self._n_files += 1
        self._n_bytes += n_bytes if n_bytes <= MAX_COPIED_BYTES else 0
        if self._n_files > MAX_FILES or self._n_bytes > MAX_TOTAL_BYTES:
            raise UsageError(
                f"{self.origin} holds too much for a copy of it (over {MAX_FILES:,} files or "
                f"{MAX_TOTAL_BYTES >> 30} GiB of small ones); start in the project's own folder, "
                "or run the trials here with --in-place"
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

    def words(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command's words, with paths that lead out of the folder made absolute."""
        return tuple(self._word(word) for word in command)

    def _word(self, word: str) -> str:
        path = self.origin / word
        leads_out = word.startswith("..") and os.path.exists(path)
        return str(path.resolve()) if leads_out else word

    def original(self, file: str) -> str:
        """The user's own file that a file of the copy stands for."""
        path = Path(file)
        if path.is_relative_to(self.folder):
            return str(self.origin / path.relative_to(self.folder))
        return file
