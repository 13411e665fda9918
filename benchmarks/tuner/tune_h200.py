"""The tuner beside an expert: `hotlap tune` and the hand-tuned versions, in one run on one GPU.

For each chosen script, in this order: `hotlap tune` of the plain script; pairs of runs outside the
tuner, `hotlap time` of the plain script and `hotlap run` with the settings that were found,
interleaved; the hand-tuned combinations (`by_hand.py`; `--hand 'A;B'` for some of them). Nothing
runs at the same time. The hand-tuned figure is that of the fastest combination; the tuner's and the
plain figure are means over the pairs.

To the tuner's disadvantage: its figure includes what the chronometer costs, the hand-tuned one has
no chronometer. The tuner starts with an empty cache of the compiler's, so that its minutes are
those of a first use; what is tuned by hand finds it filled, which shortens its warm-up alone.

The scripts that nobody has tuned by hand here show other things: `jpeg` a step that waits for data,
`grouped` and `shapes` that nothing is kept that makes a training slower.

    python benchmarks/tuner/tune_h200.py --only resnet50,mlp --budget 3 --out results/
    python benchmarks/tuner/tune_h200.py --only jpeg --levers workers=16 --pairs 3
    python benchmarks/tuner/tune_h200.py --tiny --only mlp --budget 0.5 --out /tmp/x    on a CPU
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outside import Length, Pair, environment, interval_text, mean_interval, one_pair, tune

HERE = Path(__file__).resolve().parent
RESULT = "tune_h200.json"
TINY_BATCH = ("--batch", "4")


@dataclass(frozen=True, slots=True)
class Case:
    """A plain script and how long its runs outside the tuner are."""

    script: str
    plain: Length
    tuned: Length
    tiny: tuple[str, ...]
    """Options that make it small enough for a CPU."""
    has_hand: bool = False


CASES = {
    "resnet50": Case(
        "resnet50_plain.py",
        Length(60, 20),
        Length(120, 20),
        ("--tiny", *TINY_BATCH, "--size", "32"),
        has_hand=True,
    ),
    # Workers fill their queues while the first step compiles: the warm-up outlasts what is in them.
    "jpeg": Case(
        "resnet50_jpeg.py",
        Length(15, 3),
        Length(150, 60),
        ("--tiny", *TINY_BATCH, "--size", "32"),
    ),
    "gpt2": Case(
        "gpt2_plain.py",
        Length(40, 10),
        Length(80, 20),
        ("--tiny", *TINY_BATCH),
        has_hand=True,
    ),
    "mlp": Case("mlp_plain.py", Length(4000, 500), Length(8000, 500), TINY_BATCH, has_hand=True),
    "grouped": Case(
        "hurts_grouped.py",
        Length(60, 20),
        Length(60, 20),
        (*TINY_BATCH, "--size", "32", "--width", "16", "--blocks", "2"),
    ),
    "shapes": Case(
        "hurts_shapes.py",
        Length(200, 20),
        Length(200, 20),
        (*TINY_BATCH, "--width", "16", "--layers", "1", "--longest", "100"),
    ),
}


@dataclass(slots=True)
class Outcome:
    """What was found for one script; filled as it comes, and written each time."""

    hand: dict[str, Any] | None = None
    """The document of `by_hand.py`."""
    ladder: dict[str, Any] | None = None
    minutes: float | None = None
    pairs: list[Pair] = field(default_factory=list)
    failure: str = ""

    def hand_best(self) -> tuple[str, float] | None:
        """The fastest combination."""
        measured = [
            one for one in (self.hand or {}).get("combinations", ()) if one["samples_per_s"]
        ]
        best = max(measured, key=lambda one: one["samples_per_s"], default=None)
        return (best["name"], float(best["samples_per_s"])) if best else None

    def row(self) -> dict[str, Any]:
        """The figures of the table."""
        hand = self.hand_best()
        tuned = statistics.fmean(pair.tuned for pair in self.pairs) if self.pairs else None
        return {
            "plain": statistics.fmean(pair.plain for pair in self.pairs) if self.pairs else None,
            "hand": hand[1] if hand else None,
            "hand_combination": hand[0] if hand else None,
            "tuner": tuned,
            "tuner_by_hand": tuned / hand[1] if tuned and hand else None,
            "tuner_by_plain": mean_interval([p.ratio for p in self.pairs]) if self.pairs else None,
            "ladder_ratio": self.ladder["ratio"] if self.ladder else None,
            "minutes": self.minutes,
            "levers": self.ladder["levers"] if self.ladder else None,
        }


def run_by_hand(name: str, arguments: argparse.Namespace, cache: Path) -> Any:
    """The combinations of `by_hand.py`."""
    words = [sys.executable, str(HERE / "by_hand.py"), name, "--only", arguments.hand]
    words += ["--seconds", str(arguments.seconds)]
    if arguments.tiny:
        words += ["--tiny", *TINY_BATCH]
    ended = subprocess.run(
        words,
        env=environment(TORCHINDUCTOR_CACHE_DIR=str(cache)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout.splitlines()[-1])


class Report:
    """The outcomes so far, on file after every stage: a run cut short leaves what it has."""

    def __init__(self, out: Path, budget_min: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._path = out / RESULT
        self._about = {
            "python": platform.python_version(),
            "n_cpus": len(os.sched_getaffinity(0)),
            "budget_min": budget_min,
        }
        self.outcomes: dict[str, Outcome] = {}

    def write(self) -> None:
        """Write all of it."""
        cases = {
            name: {"row": outcome.row(), **asdict(outcome)}
            for name, outcome in self.outcomes.items()
        }
        text = json.dumps({**self._about, "cases": cases}, indent=1)
        self._path.write_text(text + "\n", encoding="utf-8")


def say(text: str) -> None:
    """A line on stderr, between those of what is run."""
    print(f"== {text}", file=sys.stderr, flush=True)


def measure(name: str, arguments: argparse.Namespace, folder: Path, report: Report) -> None:
    """All stages for one script."""
    case, outcome = CASES[name], report.outcomes.setdefault(name, Outcome())
    work = folder / name
    work.mkdir()
    shutil.copy2(HERE / case.script, work)
    command = [case.script, *(case.tiny if arguments.tiny else ())]
    if name == "jpeg":
        command += ["--data", str(jpegs(arguments, folder))]
    cache = folder / f"cache-{name}"
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    if not arguments.levers:
        say(f"{name}: hotlap tune, {arguments.budget} minutes")
        began = time.monotonic()
        outcome.ladder = tune(command, work, arguments.budget, variables)
        outcome.minutes = (time.monotonic() - began) / 60
        report.write()
    for i in range(arguments.pairs):
        say(f"{name}: pair {i + 1} of {arguments.pairs}")
        lengths = shortened(case.plain, arguments.tiny), shortened(case.tuned, arguments.tiny)
        pair = one_pair(command, work, *lengths, variables, i % 2 == 0, arguments.levers)
        outcome.pairs.append(pair)
        report.write()
    if case.has_hand:
        say(f"{name}: by hand")
        outcome.hand = run_by_hand(name, arguments, cache)
        report.write()


def shortened(length: Length, tiny: bool) -> Length:
    """Few steps, where only the script is tried."""
    return Length(min(length.n_steps, 20), min(length.n_warmup, 5)) if tiny else length


def jpegs(arguments: argparse.Namespace, folder: Path) -> Path:
    """The folder of JPEG files, written where none was given."""
    if arguments.jpegs:
        return Path(arguments.jpegs).resolve()
    made = folder / "jpegs"
    n = "20" if arguments.tiny else "2000"
    subprocess.run(
        [sys.executable, str(HERE / "make_jpegs.py"), "--n", n, str(made)],
        stdout=sys.stderr,
        check=True,
    )
    return made


def table(outcomes: Mapping[str, Outcome]) -> str:
    """One line a script, in Markdown."""
    lines = [
        "| script | plain | by hand | tuner | tuner / hand | tuner / plain | minutes | levers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, outcome in outcomes.items():
        row = outcome.row()
        gain = row["tuner_by_plain"]
        levers = ", ".join(f"{k}={v}" for k, v in (row["levers"] or {}).items()) or "none"
        if outcome.failure:
            levers = f"failed: {outcome.failure.splitlines()[0]}"
        cells = [
            name,
            _number(row["plain"], 1),
            _number(row["hand"], 1),
            _number(row["tuner"], 1),
            _number(row["tuner_by_hand"], 3),
            interval_text(*gain) if gain else "-",
            _number(row["minutes"], 1),
            levers,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float | None, n_digits: int) -> str:
    return "-" if value is None else f"{value:.{n_digits}f}"


def main() -> None:
    """Measure the chosen scripts one by one, then print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(CASES), metavar="A,B", help="these scripts")
    parser.add_argument("--budget", type=float, default=5.0, help="minutes of the tuner, each")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs outside the tuner")
    parser.add_argument(
        "--levers", default="", metavar="A,B=VALUE", help="pairs with these, without tuning"
    )
    parser.add_argument("--hand", default="", metavar="A;B", help="these combinations by hand")
    parser.add_argument("--seconds", type=float, default=4.0, help="a hand-tuned combination")
    parser.add_argument("--jpegs", type=Path, help="folder of make_jpegs.py (made where missing)")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try this script")
    parser.add_argument("--out", type=Path, default=Path("."), help=f"folder for {RESULT}")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"--only: '{unknown[0]}' is none of {', '.join(CASES)}")
    report = Report(arguments.out, arguments.budget)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                measure(name, arguments, Path(folder), report)
            except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                report.outcomes[name].failure = str(error)
                say(f"{name}: {error}")
                report.write()
    print(table(report.outcomes))


if __name__ == "__main__":
    main()
