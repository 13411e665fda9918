"""What the chronometer costs a step: the same loop with and without it, in paired blocks.

Two processes run the same loop, one of them started as `hotlap time` starts it. They take turns, a
block of steps each, in random order within a pair, and never run at the same time: drift of the
machine falls on both alike. Printed are the median difference of the pairs with its 95 % interval
(bootstrap), and the requirement.

    python benchmarks/chronometer_overhead.py            CPU: a launch-bound loop, 8 and 61 modules
    python benchmarks/chronometer_overhead.py --cuda     one GPU: steps of about 1.3 and 20 ms
"""

from __future__ import annotations

import argparse
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

PAIRS = 60

LOOP = """
import sys, time, torch
from torch.utils.data import DataLoader, IterableDataset

n_modules, width, batch, n_steps, device = *map(int, sys.argv[1:5]), sys.argv[5]
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

def steps(n):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        x = next(loader).to(device, non_blocking=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / n

steps(3 * n_steps)
print(torch.__version__, torch.cuda.get_device_name() if device == "cuda" else "cpu", flush=True)
for line in sys.stdin:
    steps(max(3, n_steps // 10))
    print(steps(n_steps), flush=True)
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
        sizes = map(str, (self.n_modules, self.width, self.batch, self.n_steps, self.device))
        return subprocess.Popen(
            [sys.executable, "-c", LOOP, *sizes],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


CPU_CASES = (
    Case("CPU loop, 8 modules", "at most 25 + 8 * 0.5 = 29 µs", 8, 16, 4, 400, "cpu"),
    Case("CPU loop, 61 modules", "at most 25 + 61 * 0.5 = 55.5 µs", 61, 16, 4, 120, "cpu"),
)
CUDA_CASES = (
    Case("launch-bound loop", "at most 2 %", 9, 512, 128, 200, "cuda"),
    Case("device-bound loop", "under 0.3 %", 8, 8192, 2048, 25, "cuda"),
)


def bootstrap_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def one_block(process: subprocess.Popen[str]) -> float:
    """Seconds a step, over one block."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(case: Case, folder: str, pairs: int) -> None:
    """Measure one case and print one line."""
    plain = dict(os.environ)
    timed = child_environment(Settings(folder))
    processes = {False: case.start(plain), True: case.start(timed)}
    for process in processes.values():
        assert process.stdout is not None
        where = process.stdout.readline().strip()
    order = random.Random(1)
    without, difference = [], []
    for _ in range(pairs):
        times = {on: one_block(processes[on]) for on in order.sample([False, True], 2)}
        without.append(times[False])
        difference.append(times[True] - times[False])
    for process in processes.values():
        process.communicate()
    base, middle = statistics.median(without), statistics.median(difference)
    low, high = bootstrap_interval(difference)
    print(
        f"{case.name} ({where}): step {base * 1e6:.1f} µs, chronometer {middle * 1e6:+.1f} µs "
        f"[{low * 1e6:+.1f}, {high * 1e6:+.1f}] = {100 * middle / base:+.2f} % "
        f"[{100 * low / base:+.2f}, {100 * high / base:+.2f}]; required: {case.required}",
        flush=True,
    )


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    arguments = parser.parse_args()
    print(
        f"python {platform.python_version()}, {arguments.pairs} pairs of blocks, random order "
        "within a pair; median of the differences and its 95 % interval"
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in CUDA_CASES if arguments.cuda else CPU_CASES:
            measure(case, folder, arguments.pairs)


if __name__ == "__main__":
    main()
