"""What replayed calls are worth where the GPU waits for Python: plain scripts with small batches.

Each script runs plain, with the lever `cuda_graphs` and with `compile=reduce-overhead`, one right
after the other and all of it several times. The ratio is that to the plain run of the same round.

    python benchmarks/tuner/launch_bound.py --rounds 2
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outside import Length, interval_text, mean_interval, rate

HERE = Path(__file__).resolve().parent
LEVERS = ("", "cuda_graphs", "compile=reduce-overhead")


@dataclass(frozen=True, slots=True)
class Case:
    """A plain script with a batch so small that its kernels are short."""

    command: tuple[str, ...]
    length: Length


CASES = {
    "mlp": Case(("mlp_plain.py",), Length(4000, 500)),
    "resnet50": Case(("resnet50_plain.py", "--batch", "8"), Length(150, 30)),
    "gpt2": Case(("gpt2_plain.py", "--batch", "1"), Length(150, 30)),
}


def one_round(case: Case, folder: Path) -> dict[str, float | None]:
    """Samples a second by lever; None for one that failed."""
    rates: dict[str, float | None] = {}
    for lever in LEVERS:
        kind = ["run", "--levers", lever] if lever else ["time"]
        try:
            words = [*kind, *case.length.options(), "--", *case.command]
            rates[lever] = rate(words, folder, {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")})
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            rates[lever] = None
    return rates


def main() -> None:
    """Measure the chosen scripts, then print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(CASES), metavar="A,B", help="these scripts")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    print("| script | lever | samples/s | ratio to plain |", "|---|---|---|---|", sep="\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for script in HERE.glob("*_plain.py"):
            shutil.copy2(script, folder)
        for chosen in arguments.only.split(","):
            rounds = [one_round(CASES[chosen], folder) for _ in range(arguments.rounds)]
            for lever in LEVERS:
                known = [(one[lever], one[""]) for one in rounds if one[lever] and one[""]]
                ratios = [mine / plain for mine, plain in known if mine and plain]
                if not ratios:
                    print(f"| {chosen} | {lever or 'plain'} | failed | |", flush=True)
                    continue
                mean = statistics.fmean(mine for mine, _ in known if mine)
                text = interval_text(*mean_interval(ratios))
                print(f"| {chosen} | {lever or 'plain'} | {mean:,.1f} | {text} |", flush=True)


if __name__ == "__main__":
    main()
