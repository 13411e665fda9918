"""What `tune_h200.py` and `cpu_demo.py` share: calls of hotlap, pairs measured outside the tuner.

A pair is `hotlap time` of the plain command and `hotlap run` of the same command with the settings
that `hotlap tune` wrote, one directly after the other, the order changing from pair to pair.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[2] / "src"

# Student's t, 97.5 %, by degrees of freedom; beyond the table the next smaller entry is used.
STUDENT_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 15: 2.13, 20: 2.09}


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is that is measured outside the tuner."""

    n_steps: int
    n_warmup: int

    def options(self) -> list[str]:
        """As hotlap takes it."""
        return ["--steps", str(self.n_steps), "--warmup", str(self.n_warmup)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Samples a second without and with the settings."""

    plain: float
    tuned: float

    @property
    def ratio(self) -> float:
        """How many times as fast."""
        return self.tuned / self.plain


def environment(**more: str) -> dict[str, str]:
    """The environment in which this checkout's hotlap is the one that is found."""
    path = os.pathsep.join(filter(None, (str(SRC), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def tune(
    command: Sequence[str], folder: Path, budget_min: float, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Run `hotlap tune` in a folder; the ladder. The settings are then in its hotlap.toml."""
    ladder = folder / "ladder.json"
    options = ["--budget", str(budget_min), "--json", str(ladder)]
    words = [sys.executable, "-m", "hotlap", "tune", *options, "--", *command]
    # Its report and the script's own lines go to stderr: stdout is kept for the result.
    subprocess.run(words, cwd=folder, env=environment(**variables), stdout=sys.stderr, check=True)
    document: dict[str, Any] = json.loads(ladder.read_text(encoding="utf-8"))
    return document


def rate(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Samples a second of one `hotlap time …` or `hotlap run …`."""
    result = folder / "run.json"
    result.unlink(missing_ok=True)
    kind, *rest = words
    ended = subprocess.run(
        [sys.executable, "-m", "hotlap", kind, "--quiet", "--json", str(result), *rest],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    if ended.returncode or not run.get("steps_per_s"):
        last = "\n".join(ended.stderr.splitlines()[-12:])
        raise RuntimeError(f"hotlap {' '.join(words)}: exit code {ended.returncode}\n{last}")
    return float(run["samples_per_s"] or run["steps_per_s"])


def one_pair(
    command: Sequence[str],
    folder: Path,
    plain: Length,
    tuned: Length,
    variables: Mapping[str, str],
    plain_first: bool,
    levers: str = "",
) -> Pair:
    """Measure both, in this order; with the settings that were found, or with these levers."""
    settings = ["--levers", levers] if levers else ["--settings", "hotlap.toml"]
    runs = {
        "plain": ["time", *plain.options(), "--", *command],
        "tuned": ["run", *settings, *tuned.options(), "--", *command],
    }
    order = ("plain", "tuned") if plain_first else ("tuned", "plain")
    rates = {name: rate(runs[name], folder, variables) for name in order}
    return Pair(**rates)


def mean_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and its 95 % interval by Student's t; of one value there is no interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    t = STUDENT_T[max(known for known in STUDENT_T if known <= len(values) - 1)]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def interval_text(value: float, low: float | None, high: float | None) -> str:
    """`1.85 [1.80, 1.90]`."""
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
