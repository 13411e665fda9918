"""Where Runs live: `.hotlap/<id>/`, one folder a Run, made without looking at the others."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from hotlap.errors import RecordError, UsageError
from hotlap.records.begun import BEGUN
from hotlap.records.run import Run


def default_runs_dir() -> Path:
    """Where Runs are kept if nobody says otherwise."""
    return Path(os.environ.get("HOTLAP_RUNS_DIR", ".hotlap"))


class RunStore:
    """The Runs of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def new_folder(self) -> Path:
        """Make the folder of a new Run, or say that it cannot be written before anything starts."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            folder = self._make_unique()
            self._write_probe(folder)
        except OSError as error:
            raise UsageError(
                f"the folder for Runs, {self.root}, cannot be written ({error.strerror}); "
                "make it writable or name another one with --runs-dir DIR"
            ) from None
        return folder

    def _make_unique(self) -> Path:
        ignore = self.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        while True:
            stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
            folder = self.root / f"{stamp}-{secrets.token_hex(3)}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder

    @staticmethod
    def _write_probe(folder: Path) -> None:
        # A folder can be made on a full disk that cannot hold a byte: find out now, not at the end.
        probe = folder / ".probe"
        with probe.open("wb") as stream:
            stream.write(b"\0" * 4096)
            os.fsync(stream.fileno())
        probe.unlink()

    def folders(self) -> Iterator[Path]:
        """The folders that hold a `run.json`, oldest first."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if (folder / "run.json").is_file():
                yield folder

    def unfinished(self) -> Iterator[Path]:
        """The folders of Runs that were begun without a launcher and have no `run.json` yet."""
        for path in sorted(self.root.glob(f"*/{BEGUN}")):
            if not (path.parent / "run.json").is_file():
                yield path.parent

    def find(self, name: str) -> Path:
        """The folder of a Run named by its id, the start or end of it, a path, or `last`."""
        path = Path(name)
        if path.name == "run.json" and path.is_file():
            return path.parent
        if (path / "run.json").is_file():
            return path
        folders = list(self.folders())
        if name == "last" and folders:
            return folders[-1]
        matches = [
            f for f in folders if name and (f.name.startswith(name) or f.name.endswith(name))
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(
                f"'{name}' names {len(matches)} Runs in {self.root}; give more of the id, "
                f"for example {matches[-1].name}"
            )
        raise UsageError(
            f"no Run '{name}' in {self.root}; `hotlap runs` lists those that are there"
        )

    def read_all(self, last: int | None = None) -> Iterator[tuple[Path, Run | RecordError]]:
        """Every Run, or the last ones, or why one cannot be read."""
        folders = list(self.folders())
        for folder in folders[-last:] if last else folders:
            try:
                yield folder, Run.read(folder)
            except RecordError as error:
                yield folder, error
