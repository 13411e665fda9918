"""What a profiled process leaves in the Run's folder, and how the launcher finds it again.

<host>-<pid>.profile          one JSON object a line: what was seen and how far it got
<host>-<pid>.times.json       the trace of the window without stacks
<host>-<pid>.lines.json       the trace of the window with stacks
<host>-<pid>.sites.json       the user's line of every operator in it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOG_SUFFIX = ".profile"
TIMES_SUFFIX = ".times.json"
LINES_SUFFIX = ".lines.json"
SITES_SUFFIX = ".sites.json"


class ProfileLog:
    """Appends entries to this process's log; what comes before there is a file waits for it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._waiting: list[dict[str, Any]] = []

    def open(self, stem: Path) -> None:
        """From now on entries go to the file of this process."""
        self._path = stem.with_name(stem.name + LOG_SUFFIX)
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self.write(**entry)

    def write(self, **entry: Any) -> None:
        """Append one entry. A training is never stopped by a disk that takes none."""
        if self._path is None:
            self._waiting.append(entry)
            return
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")
        except (OSError, TypeError, ValueError):
            return


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a process; a last line that was cut short is left out."""
    entries = []
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
