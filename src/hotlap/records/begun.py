"""`begun.json`: what is known of a Run before its end, where no launcher waits for that end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

BEGUN = "begun.json"


@dataclass(frozen=True, slots=True)
class Begun:
    command: tuple[str, ...]
    started: str
    machine: dict[str, Any]
    host: str
    pid: int
    """Of rank 0, on that host."""
    world_size: int

    def write(self, folder: Path) -> None:
        """Write it into the folder of its Run."""
        write_json(folder / BEGUN, self)

    @staticmethod
    def read(folder: Path) -> Begun:
        """Read that of a folder."""
        try:
            return from_json(Begun, read_json(folder / BEGUN), "")
        except RecordError as error:
            raise RecordError(f"{folder / BEGUN} is damaged: {error}") from None
