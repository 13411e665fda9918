"""What the tuner gains on two CPU cores, and whether the gain is there outside the tuner.

Tunes a script with `hotlap tune` in a temporary folder, then measures its result anew: pairs of
`hotlap time` and `hotlap run` with the settings that were written, interleaved, the order changing
from pair to pair. Printed are each pair's ratio, the mean with its 95 % interval (Student's t over
the pairs), and beside it the ratio that the ladder itself claims. The two should agree: a ladder
that claims more than a fresh measurement finds is wrong.

    python benchmarks/tuner/cpu_demo.py                          examples/train_plain.py, 4 minutes
    python benchmarks/tuner/cpu_demo.py --budget 8 train.py --lr 0.1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from outside import Length, interval_text, mean_interval, one_pair, tune

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_plain.py"


def keep_to_cores(n_cores: int) -> int:
    """Keep this process and all that it starts on so many cores; how many there are."""
    allowed = sorted(os.sched_getaffinity(0))[:n_cores]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Tune in this folder, then measure again."""
    script, *words = arguments.command or [str(EXAMPLE)]
    shutil.copy2(script, folder)
    command = [Path(script).name, *words]
    # Compilers start from nothing: what an earlier run left in their cache is not the tuner's.
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder / ".hotlap" / "inductor")}
    began = time.monotonic()
    ladder = tune(command, folder, arguments.budget, variables)
    minutes = (time.monotonic() - began) / 60
    print(f"tuned in {minutes:.1f} min; levers: {levers_text(ladder['levers'])}", flush=True)
    length = Length(arguments.steps, arguments.warmup)
    pairs = []
    for i in range(arguments.pairs):
        pair = one_pair(command, folder, length, length, variables, plain_first=i % 2 == 0)
        pairs.append(pair)
        print(
            f"pair {i + 1}: plain {pair.plain:.1f}, tuned {pair.tuned:.1f} {ladder['unit']}, "
            f"ratio {pair.ratio:.3f}",
            flush=True,
        )
    outside = mean_interval([pair.ratio for pair in pairs])
    claimed = (ladder["ratio"], ladder["ratio_low"], ladder["ratio_high"])
    print(f"outside the tuner: {interval_text(*outside)}; the ladder: {interval_text(*claimed)}")
    return {
        "minutes": minutes,
        "pairs": [{"plain": pair.plain, "tuned": pair.tuned} for pair in pairs],
        "ratio": outside,
        "ladder": ladder,
    }


def levers_text(levers: dict[str, str]) -> str:
    """`a=1, b=on`."""
    return ", ".join(f"{name}={value}" for name, value in levers.items()) or "none"


def main() -> None:
    """Tune, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=4.0, help="minutes for the tuner")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60, help="measured steps a run")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the result, the ladder included")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its options")
    arguments = parser.parse_args()
    n_cores = keep_to_cores(arguments.cores)
    print(
        f"python {platform.python_version()}, {n_cores} cores; {arguments.pairs} pairs of runs, "
        f"{arguments.steps} steps each",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        result = measure(arguments, Path(name))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
