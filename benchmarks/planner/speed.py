"""How long a plan takes: wall and processor seconds of `hotlap plan` as a user starts it.

    PYTHONPATH=src python3 benchmarks/planner/speed.py [--write FILE]     a minute on 2 cores

Each command runs three times in a fresh process; the median is kept. A search is the plan without
its layout, so what it takes more is what the search costs. Processor seconds are those of the
command and of the process that traces, and do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 3
GPT = "--layers 96 --hidden 12288 --heads 96 --ffn 49152 --vocab 51200 --seq 2048 --batch 1536"
HOW = "--precision bf16-master --optimizer adamw"
GPUS = "--gpu a100-80gb --gpus 512 --gpus-per-node 8 --interconnect 100"
LAYOUT = ["--micro-batch", "1", "--recompute", "full", "--layout", "dp=8 tp=8 pp=8"]
EXPERTS = (
    "--layers 60 --hidden 5120 --heads 40 --ffn 1536 --vocab 102400 --seq 16384 --batch 1536 "
    "--experts 64 --experts-per-token 6 --gated --no-bias --untied"
)
ONE = "--precision bf16 --optimizer adamw --gpu h200-141gb --gpus 1 --micro-batch 32 --batch 32"
ON_512 = "--precision bf16 --optimizer adamw --gpu h100-80gb --gpus 512 --gpus-per-node 8"
COMMANDS: dict[str, tuple[list[str], float]] = {
    "sizes, a given layout": ([*f"{GPT} {HOW} {GPUS}".split(), *LAYOUT], 5),
    "sizes, searched on 512 GPUs": (f"{GPT} {HOW} {GPUS}".split(), 25),
    "sizes, searched, with the host's memory": (
        f"{GPT} {HOW} {GPUS} --host-memory 2000".split(), 25),
    "64 experts of 16k tokens, searched": (
        f"{EXPERTS} {HOW} {GPUS}".split(), 25),
    "the same, with the host's memory": (f"{EXPERTS} {HOW} {GPUS} --host-memory 2000".split(), 25),
    "ResNet-50 traced": (
        ["hotlap.models.resnet:resnet50", *f"--image-size 224 {ONE}".split()], 30),
    "ViT-B/16 traced": (["hotlap.models.vit:vit_base", *f"--image-size 224 {ONE}".split()], 30),
    "GPT-2 124M traced": (["hotlap.models.gpt:gpt2_124m", *f"--seq 1024 {ONE}".split()], 30),
    "GPT-2 124M traced, searched on 512 GPUs": (
        ["hotlap.models.gpt:gpt2_124m",
         *f"--seq 1024 --batch 4096 {ON_512} --interconnect 400".split()], 50),
}  # fmt: skip
"""Words of a command, and the most seconds it may take."""


def once(words: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one fresh process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "hotlap", "plan", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=300,
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there too")
    arguments = parser.parse_args()
    lines = [
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; load before "
        f"{os.getloadavg()[0]:.1f}; medians of {REPEATS}",
        "",
        "| plan | wall s | processor s | at most s |",
        "|---|---|---|---|",
    ]
    for name, (words, most) in COMMANDS.items():
        found = [once(words) for _ in range(REPEATS)]
        wall, cpu = (statistics.median(times) for times in zip(*found, strict=True))
        lines.append(f"| {name} | {wall:.2f} | {cpu:.2f} | {most:g}{' MISSED' * (wall > most)} |")
        print(lines[-1], flush=True)
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
