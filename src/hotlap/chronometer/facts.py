"""The facts file: what a measured process says of itself in words, one JSON object a line.

Appended with single writes, so that what was said before a kill is there after it. Later lines
override earlier ones, key by key; `note` collects.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class FactsWriter:
    """Writes facts; a disk that is full is no reason to raise in a training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank: int = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **facts: Any) -> None:
        """Append facts."""
        self.rank = facts.get("rank", self.rank)
        try:
            os.write(self._file, (json.dumps(facts) + "\n").encode())
        except OSError:
            return


def read_facts(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The facts and the notes; a last line that was cut short is left out."""
    facts: dict[str, Any] = {}
    notes: list[str] = []
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "note" in entry:
            notes.append(entry["note"])
        facts.update(entry)
    facts.pop("note", None)
    return facts, notes
