"""Start `hotlap profile` as a user would, and bring back what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import SCRIPTS, TIMEOUT_S, environment

from hotlap.records.profile import Profile, RankProfile

SCRIPT = SCRIPTS / "profiled.py"


@dataclass(frozen=True)
class Profiled:
    document: dict[str, Any]
    """What `--json` wrote."""
    folder: Path
    """The Run's."""
    stdout: str
    stderr: str
    code: int

    @property
    def profile(self) -> Profile:
        return Profile.read(self.folder)

    @property
    def rank(self) -> RankProfile:
        """The only one."""
        (rank,) = self.profile.ranks
        return rank


def profile_command(
    folder: Path,
    *words: str,
    options: tuple[str, ...] = ("--warmup", "4", "--steps", "2"),
    extra: Mapping[str, str] | None = None,
) -> Profiled:
    """Run `hotlap profile` on a command to its end."""
    result = folder / "profile.json"
    kept = ["--runs-dir", str(folder / "runs"), "--json", str(result)]
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", "profile", *kept, *options, *words],
        cwd=SCRIPTS,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    document = json.loads(result.read_bytes()) if result.exists() else {}
    made = folder / "runs" / document["run"]["id"] if document else folder / "runs"
    return Profiled(document, made, done.stdout, done.stderr, done.returncode)


def profile_style(folder: Path, style: str, *words: str, **more: Any) -> Profiled:
    """Profile one of the planted trainings."""
    return profile_command(folder, SCRIPT.name, "--style", style, *words, **more)


def line_of(planted: str) -> int:
    """The line of the script that a comment plants something on."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if f"# planted: {planted}" in line)
