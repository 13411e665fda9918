"""What the chronometer costs a step: the same loop with and without it, in paired blocks.

One process, started as `hotlap time` starts it, trains one model, by turns through the functions
that the chronometer has put in and through torch's own, in random order within a pair: two
processes would differ by more than is to be measured. Blocks are short, so that drift of the machine falls on both of a
pair, and many. Printed are the mean difference of the pairs without the tenth at either end, its
95 % interval (bootstrap), and the requirement. What the chronometer does only now and then (probing
a step, writing the buffer out) is in some blocks and not in others: hence a mean, not a median.

    python benchmarks/chronometer_overhead.py            CPU: a launch-bound loop, 8 and 61 modules
    python benchmarks/chronometer_overhead.py --cuda     one GPU: steps of about 1.3 and 20 ms
"""

from __future__ import annotations

import argparse
import json
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

LOOP = """
import json, random, sys, time, torch
import torch.optim.optimizer as optimizer_module
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

n_modules, width, batch, n_steps, n_pairs, device = *map(int, sys.argv[1:6]), sys.argv[6]
torch.set_num_threads(1)
torch.manual_seed(0)

# The same loop twice, on the same weights: with the functions that the chronometer has put in, and
# with torch's own. No class is changed while it runs, which would cost both of them their caches.
class PlainLinear(torch.nn.Linear):
    __call__ = torch.nn.Module.__call__.__wrapped__

class PlainSequential(torch.nn.Sequential):
    __call__ = torch.nn.Module.__call__.__wrapped__

class PlainIterator(_SingleProcessDataLoaderIter):
    __next__ = _BaseDataLoaderIter.__next__.__wrapped__

class SameIterator(_SingleProcessDataLoaderIter):
    pass

class SameLinear(torch.nn.Linear):
    pass

class SameSequential(torch.nn.Sequential):
    pass

batches = [torch.randn(batch, width) for _ in range(8)]
if device == "cuda":
    batches = [b.pin_memory() for b in batches]

class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield from batches

timed = SameSequential(*[SameLinear(width, width) for _ in range(n_modules - 1)]).to(device)
plain = PlainSequential(*[PlainLinear(width, width) for _ in range(n_modules - 1)])
for ours, theirs in zip(timed, plain):
    theirs.weight, theirs.bias = ours.weight, ours.bias
optimizer = torch.optim.SGD(timed.parameters(), lr=1e-3)
loader = DataLoader(Endless(), batch_size=None)
PARTS = {
    True: (timed, SameIterator(loader), torch.Tensor.to),
    False: (plain, PlainIterator(loader), torch._C.TensorBase.to),
}
BACKWARD = {
    True: torch.autograd._engine_run_backward,
    False: torch.autograd._engine_run_backward.__wrapped__,
}
HOOKS = [
    (hooks, dict(hooks))
    for hooks in (optimizer_module._global_optimizer_pre_hooks,
                  optimizer_module._global_optimizer_post_hooks)
]
assert all(kept for _, kept in HOOKS), "the chronometer is not in place"

def steps(n, on):
    model, batches, to = PARTS[on]
    torch.autograd._engine_run_backward = BACKWARD[on]
    for hooks, kept in HOOKS:
        hooks.clear()
        if on:
            hooks.update(kept)
    for _ in range(2):
        step(model, batches, to)
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        step(model, batches, to)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / n

def step(model, batches, to):
    x = to(next(batches), device, non_blocking=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for on in (True, False, True, False):
    steps(10 * n_steps, on)
order = random.Random(1)
pairs = []
for _ in range(n_pairs):
    pair = {on: steps(n_steps, on) for on in order.sample([False, True], 2)}
    pairs.append((pair[False], pair[True]))
where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
print(json.dumps({"torch": torch.__version__, "where": where, "pairs": pairs}))
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


CPU_CASES = (
    Case("loop with 8 modules", "at most 25 + 8 * 0.5 = 29 µs", 8, 16, 4, 25, "cpu"),
    Case("loop with 61 modules", "at most 25 + 61 * 0.5 = 55.5 µs", 61, 16, 4, 10, "cpu"),
)
CUDA_CASES = (
    Case("launch-bound loop", "at most 2 %", 7, 512, 128, 25, "cuda"),
    Case("device-bound loop", "under 0.3 %", 8, 4096, 2048, 4, "cuda"),
)


def trimmed_mean(values: list[float]) -> float:
    """The mean without the tenth at either end."""
    cut = len(values) // 10
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def bootstrap_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the trimmed mean."""
    draw = random.Random(0)
    means = sorted(trimmed_mean(draw.choices(values, k=len(values))) for _ in range(1000))
    return means[25], means[974]


def measure(case: Case, n_pairs: int) -> None:
    """Measure one case and print one line."""
    sizes = (case.n_modules, case.width, case.batch, case.n_steps, n_pairs)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", LOOP, *map(str, sizes), case.device],
            env=child_environment(Settings(folder)),
            stdout=subprocess.PIPE,
            check=True,
        )
    result = json.loads(process.stdout)
    without = statistics.median(off for off, _ in result["pairs"])
    differences = [on - off for off, on in result["pairs"]]
    middle = trimmed_mean(differences)
    low, high = bootstrap_interval(differences)
    print(
        f"{case.name} (torch {result['torch']}, {result['where']}): step {without * 1e6:.1f} µs, "
        f"chronometer {middle * 1e6:+.1f} µs [{low * 1e6:+.1f}, {high * 1e6:+.1f}] = "
        f"{100 * middle / without:+.2f} % [{100 * low / without:+.2f}, {100 * high / without:+.2f}]"
        f"; required: {case.required}",
        flush=True,
    )


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--pairs", type=int, default=800)
    parser.add_argument("--only", default="", help="only the cases whose name holds this")
    arguments = parser.parse_args()
    print(
        f"python {platform.python_version()}, {os.cpu_count()} CPUs, {arguments.pairs} pairs of "
        "blocks, random order within a pair; trimmed mean of the differences and its 95 % interval"
    )
    for case in CUDA_CASES if arguments.cuda else CPU_CASES:
        if arguments.only in case.name:
            measure(case, arguments.pairs)


if __name__ == "__main__":
    main()
