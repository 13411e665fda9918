"""What the chronometer costs a step: the same loop with and without it, in turns in one process.

A process is started as `hotlap time` starts it. Between blocks of steps all hooks are taken out of
torch and put back, and the thread that reads the power meter stands still while they are out. The
two blocks of a pair come in random order. Steps right after a change are not counted: Python learns
anew then what it calls. A block is long enough to hold what the chronometer does now and then.

Two processes of one program differ by some percent, by luck of their memory; so the hooks are
changed inside of one, and this is repeated with fresh ones. Printed are the mean over the processes
of their median difference, its 95 % interval (Student's t over the processes), and the requirement.

    python benchmarks/chronometer_overhead.py            CPU: a launch-bound loop, 8 and 61 modules
    python benchmarks/chronometer_overhead.py --cuda     one GPU: a launch-bound and a long step
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SRC = Path(__file__).parent.parent / "src"
sys.path.insert(0, str(SRC))

from hotlap.chronometer.launch import child_environment  # noqa: E402
from hotlap.chronometer.session import Session, Settings  # noqa: E402

STUDENT_T = {2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 11: 2.20, 15: 2.13}
WARMUP_BLOCKS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """One loop and what is required of the chronometer on it."""

    name: str
    required: str
    n_modules: int
    width: int
    batch: int
    n_settling: int
    """Steps after a change that are not counted."""
    n_steps: int
    """Of a block."""
    device: str


CASES = (
    Case("CPU, 8 modules", "at most 25 + 8 * 0.5 = 29 µs", 8, 16, 4, 30, 100, "cpu"),
    Case("CPU, 61 modules", "at most 25 + 61 * 0.5 = 55.5 µs", 61, 16, 4, 12, 30, "cpu"),
    Case("launch-bound loop", "at most 2 %", 7, 512, 128, 16, 96, "cuda"),
    Case("device-bound loop", "under 0.3 %", 8, 4096, 2048, 2, 8, "cuda"),
)


class Loop:
    """A training loop as anybody writes it."""

    def __init__(self, case: Case) -> None:
        import torch
        from torch.utils.data import DataLoader, IterableDataset

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.torch, self.case = torch, case
        layers = [torch.nn.Linear(case.width, case.width) for _ in range(case.n_modules - 1)]
        self.model = torch.nn.Sequential(*layers).to(case.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        batches = [torch.randn(case.batch, case.width) for _ in range(8)]
        if case.device == "cuda":
            batches = [batch.pin_memory() for batch in batches]

        class Endless(IterableDataset):
            def __iter__(self) -> Any:
                while True:
                    yield from batches

        self.loader = iter(DataLoader(Endless(), batch_size=None))

    def run(self, n_steps: int) -> float:
        """Seconds a step."""
        device, model, optimizer, loader = self.case.device, self.model, self.optimizer, self.loader
        self.wait()
        start = time.perf_counter()
        for _ in range(n_steps):
            x = next(loader).to(device, non_blocking=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        self.wait()
        return (time.perf_counter() - start) / n_steps

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.case.device == "cuda":
            self.torch.cuda.synchronize()


class Hooks:
    """All that the chronometer has put into torch, to be taken out and put back."""

    def __init__(self, torch: Any, session: Session) -> None:
        import torch.optim.optimizer as optimizers

        data, tensor = torch.utils.data.dataloader, torch.Tensor
        self._places = [
            (data.DataLoader, "__iter__"),
            (data._BaseDataLoaderIter, "__next__"),
            (torch.nn.Module, "__call__"),
            (torch.nn.Module, "_wrapped_call_impl"),
            (torch.autograd, "_engine_run_backward"),
            (torch.amp.GradScaler, "scale"),
            (torch.amp.GradScaler, "step"),
        ]
        if torch.version.cuda or torch.version.hip:
            self._places += [(tensor, name) for name in ("to", "cuda", "copy_")]
        self._dicts = [optimizers._global_optimizer_pre_hooks]
        self._dicts += [optimizers._global_optimizer_post_hooks]
        self._out: list[tuple[Any, str, Any]] = []
        self._out_of_dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._may_read_power = threading.Event()
        self._may_read_power.set()
        if session.device is not None:
            stop = session.device._power._stop
            wait = stop.wait
            stop.wait = lambda s: self._may_read_power.wait() and wait(s)

    def take_out(self) -> None:
        """Torch as it was."""
        self._out = [(owner, name, getattr(owner, name)) for owner, name in self._places]
        for owner, name, hook in self._out:
            setattr(owner, name, hook.__wrapped__)
        self._out_of_dicts = [(one, dict(one)) for one in self._dicts]
        for one in self._dicts:
            one.clear()
        self._may_read_power.clear()

    def put_back(self) -> None:
        """As it was before they were taken out."""
        for owner, name, hook in self._out:
            setattr(owner, name, hook)
        for one, content in self._out_of_dicts:
            one.update(content)
        self._may_read_power.set()


def measure_here(case: Case, n_pairs: int) -> dict[str, Any]:
    """In a measured process: the median step without, and the median difference."""
    import gc

    loop = Loop(case)
    for _ in range(WARMUP_BLOCKS):
        loop.run(case.n_steps)
    # A Session has slots and no weak references: it is found by what collects garbage.
    (session,) = (one for one in gc.get_objects() if type(one) is Session and one.tape is not None)
    hooks = Hooks(loop.torch, session)
    order = random.Random(os.getpid())
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(n_pairs):
        for is_on in order.sample([False, True], 2):
            if not is_on:
                hooks.take_out()
            loop.run(case.n_settling)
            times[is_on].append(loop.run(case.n_steps))
            if not is_on:
                hooks.put_back()
    n_steps_seen = len(session.boundaries)
    assert n_steps_seen >= n_pairs * case.n_steps, "the chronometer was not at work"
    differences = [on - off for off, on in zip(times[False], times[True], strict=True)]
    name = loop.torch.cuda.get_device_name() if case.device == "cuda" else platform.machine()
    return {
        "where": f"torch {loop.torch.__version__}, {name}",
        "without_s": statistics.median(times[False]),
        "difference_s": statistics.median(differences),
    }


def measure(case: Case, n_processes: int, n_pairs: int) -> None:
    """Measure one case in fresh processes, one after another, and print one line."""
    results = []
    for _ in range(n_processes):
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, "--here", case.name, "--pairs", str(n_pairs)]
            environment = child_environment(Settings(folder)) | {"HOTLAP_SKIP_FLOPS": "1"}
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
        results.append(json.loads(done.stdout))
    base = statistics.fmean(one["without_s"] for one in results)
    differences = [one["difference_s"] for one in results]
    mean = statistics.fmean(differences)
    t = STUDENT_T[max(known for known in STUDENT_T if known <= n_processes - 1)]
    half = t * statistics.stdev(differences) / math.sqrt(n_processes)
    low, high = mean - half, mean + half
    print(
        f"{case.name} ({results[0]['where']}): step {base * 1e6:.1f} µs, chronometer "
        f"{mean * 1e6:+.1f} µs [{low * 1e6:+.1f}, {high * 1e6:+.1f}] = {100 * mean / base:+.2f} % "
        f"[{100 * low / base:+.2f}, {100 * high / base:+.2f}]; required: {case.required}\n"
        f"  processes: {', '.join(f'{one * 1e6:+.1f}' for one in differences)} µs",
        flush=True,
    )


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", default="", help="only the cases whose name holds this")
    parser.add_argument("--processes", type=int, default=6, help="at least 3 (default: 6)")
    parser.add_argument("--pairs", type=int, default=100, help="of blocks, in each (default: 100)")
    parser.add_argument("--here", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        (case,) = (case for case in CASES if case.name == arguments.here)
        print(json.dumps(measure_here(case, arguments.pairs)))
        return
    print(
        f"python {platform.python_version()}, {os.cpu_count()} CPUs; {arguments.processes} "
        f"processes, {arguments.pairs} pairs of blocks each"
    )
    if not arguments.cuda:  # one thread trains: kept on one core it is not moved about
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for case in CASES:
        if arguments.only in case.name and (case.device == "cuda") == arguments.cuda:
            measure(case, arguments.processes, arguments.pairs)


if __name__ == "__main__":
    main()
