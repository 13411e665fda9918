"""What the chronometer costs a step: the same loop with and without it, in paired blocks.

Two processes run the same loop, one of them started as `hotlap time` starts it. They take turns, a
block of steps each, in random order within a pair, and never run at the same time. A block's value
is the median of ten stretches, each long enough to hold what the chronometer does only now and
then. Two processes of the same program differ by some percent, by luck of their memory: so this is
repeated with fresh processes. Printed are the mean over the process pairs of their median
difference, its 95 % interval (Student's t over the process pairs), and the requirement.

    python benchmarks/chronometer_overhead.py            CPU: a launch-bound loop, 8 and 61 modules
    python benchmarks/chronometer_overhead.py --cuda     one GPU: a launch-bound and a long step
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"
sys.path.insert(0, str(SRC))

from hotlap.chronometer.launch import child_environment  # noqa: E402
from hotlap.chronometer.session import Settings  # noqa: E402

STUDENT_T = {3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 11: 2.20, 15: 2.13}
STRETCHES = 10
TOGETHER = 4
"""Pairs of processes that are started at a time."""

LOOP = """
import statistics, sys, time, torch
from torch.utils.data import DataLoader, IterableDataset

n_modules, width, batch, n_steps, n_stretches, device = *map(int, sys.argv[1:6]), sys.argv[6]
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(n_modules - 1)])
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batches = [torch.randn(batch, width) for _ in range(8)]
if device == "cuda":
    batches = [b.pin_memory() for b in batches]

class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield from batches

loader = iter(DataLoader(Endless(), batch_size=None))

def stretch():
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n_steps):
        x = next(loader).to(device, non_blocking=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / n_steps

for _ in range(5):
    stretch()
print(torch.__version__, torch.cuda.get_device_name() if device == "cuda" else "CPU", flush=True)
for line in sys.stdin:
    print(statistics.median(stretch() for _ in range(n_stretches + 1)), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One loop and what is required of the chronometer on it."""

    name: str
    required: str
    n_modules: int
    width: int
    batch: int
    n_steps: int
    device: str

    def start(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        """A process that runs a block for each line it gets."""
        sizes = (self.n_modules, self.width, self.batch, self.n_steps, STRETCHES)
        return subprocess.Popen(
            [sys.executable, "-c", LOOP, *map(str, sizes), self.device],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


CPU_CASES = (
    Case("loop with 8 modules", "at most 25 + 8 * 0.5 = 29 µs", 8, 16, 4, 100, "cpu"),
    Case("loop with 61 modules", "at most 25 + 61 * 0.5 = 55.5 µs", 61, 16, 4, 20, "cpu"),
)
CUDA_CASES = (
    Case("launch-bound loop", "at most 2 %", 7, 512, 128, 60, "cuda"),
    Case("device-bound loop", "under 0.3 %", 8, 4096, 2048, 2, "cuda"),
)


def one_block(process: subprocess.Popen[str]) -> float:
    """Seconds a step, over one block."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def some_process_pairs(
    case: Case, n_pairs: int, rounds: int, order: random.Random
) -> list[tuple[float, float, str]]:
    """Of each pair: median step without, median difference, and where it ran."""
    with tempfile.TemporaryDirectory() as folder:
        timed = child_environment(Settings(folder))
        # Started together, because starting takes longer than measuring; one works at a time.
        pairs = [
            {False: case.start(dict(os.environ)), True: case.start(timed)} for _ in range(n_pairs)
        ]
        for pair in pairs:
            for process in pair.values():
                assert process.stdout is not None
                where = process.stdout.readline().strip()
        results = []
        for pair in pairs:
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(rounds):
                for on in order.sample([False, True], 2):
                    times[on].append(one_block(pair[on]))
            differences = [on - off for off, on in zip(times[False], times[True], strict=True)]
            results.append((statistics.median(times[False]), statistics.median(differences), where))
        for pair in pairs:
            for process in pair.values():
                process.communicate()
    return results


def measure(case: Case, n_processes: int, rounds: int) -> None:
    """Measure one case and print one line."""
    order = random.Random(1)
    results: list[tuple[float, float, str]] = []
    while len(results) < n_processes:
        together = min(TOGETHER, n_processes - len(results))
        results += some_process_pairs(case, together, rounds, order)
    base = statistics.fmean(without for without, _, _ in results)
    differences = [difference for _, difference, _ in results]
    mean = statistics.fmean(differences)
    t = STUDENT_T[max(known for known in STUDENT_T if known <= n_processes - 1)]
    half = t * statistics.stdev(differences) / math.sqrt(n_processes)
    print(
        f"{case.name} ({results[0][2]}): step {base * 1e6:.1f} µs, "
        f"chronometer {mean * 1e6:+.1f} µs "
        f"[{(mean - half) * 1e6:+.1f}, {(mean + half) * 1e6:+.1f}] = {100 * mean / base:+.2f} % "
        f"[{100 * (mean - half) / base:+.2f}, {100 * (mean + half) / base:+.2f}]; "
        f"required: {case.required}",
        flush=True,
    )


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", default="", help="only the cases whose name holds this")
    parser.add_argument("--processes", type=int, default=8, help="pairs of processes, at least 4")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of blocks in each")
    arguments = parser.parse_args()
    print(
        f"python {platform.python_version()}, {os.cpu_count()} CPUs; {arguments.processes} pairs "
        f"of processes, {arguments.rounds} pairs of blocks each, {STRETCHES} stretches a block"
    )
    if not arguments.cuda:  # one thread trains: kept on one core it is not moved about
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for case in CUDA_CASES if arguments.cuda else CPU_CASES:
        if arguments.only in case.name:
            measure(case, arguments.processes, arguments.rounds)


if __name__ == "__main__":
    main()
