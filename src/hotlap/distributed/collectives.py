"""What ranks can say to each other: each operation shown, checked and timed.

    torchrun --nproc-per-node 2 -m hotlap.distributed.collectives
    srun --ntasks 8 python -m hotlap.distributed.collectives --sizes 1MiB,64MiB

Every operation is first done once with numbers that can be known beforehand, and each rank compares
what it got. Only what came out right is timed. A repetition begins together on all ranks and ends
with the slowest.

The size S of an operation is that of the whole array, as nccl-tests counts it: where an array is
cut into one part for each rank, S is the sum of the parts. From it and the time t come

    algorithm bandwidth   S / t
    bus bandwidth         S / t times a factor that depends on the operation and the number of ranks

The second compares with what a link of the hardware can do, whatever the number of ranks.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from hotlap.chronometer.clock import now_ns
from hotlap.distributed.exchanges import OPERATIONS, ROOT, Exchange, Operation, Ranks
from hotlap.distributed.launch import detect, start
from hotlap.distributed.leave import leave
from hotlap.errors import UsageError
from hotlap.records.codec import write_json
from hotlap.wording import n_of

N_WARMUP = 3
"""The first calls open connections and choose algorithms."""
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Record:
    """One operation at one size."""

    operation: str
    n_bytes: int
    world_size: int
    device: str
    wrong_ranks: tuple[int, ...]
    """Ranks that got a wrong result; where there are any, nothing was timed."""
    n_repeats: int
    median_s: float | None
    p10_s: float | None
    p90_s: float | None
    algorithm_gb_per_s: float | None
    """10^9 bytes a second, at the median."""
    bus_gb_per_s: float | None


def run(
    sizes: Sequence[int],
    device: torch.device,
    n_repeats: int,
    operations: Sequence[Operation] = OPERATIONS,
    seen: Callable[[Record], None] | None = None,
) -> tuple[Record, ...]:
    """Check and time every operation at every size, in bytes, in the group that was started.

    All ranks return the same records; `seen` gets each as soon as it is there.
    """
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), device)
    records = []
    for operation in operations:
        for n_bytes in sizes:
            records.append(_measure(operation, ranks, n_bytes, n_repeats))
            if seen:
                seen(records[-1])
    return tuple(records)


def _measure(operation: Operation, ranks: Ranks, n_bytes: int, n_repeats: int) -> Record:
    n_elements = _round_up(n_bytes // torch.float32.itemsize, ranks.n)
    exchange = operation.prepare(ranks, n_elements)
    wrong = _wrong_ranks(exchange, ranks)
    times_s = () if wrong else _time(exchange, ranks, n_repeats)
    n_bytes = n_elements * torch.float32.itemsize
    median_s = statistics.median(times_s) if times_s else None
    algorithm = n_bytes / 1e9 / median_s if median_s else None
    return Record(
        operation=operation.name,
        n_bytes=n_bytes,
        world_size=ranks.n,
        device=ranks.device.type,
        wrong_ranks=wrong,
        n_repeats=len(times_s),
        median_s=median_s,
        p10_s=_percentile(times_s, 0.1),
        p90_s=_percentile(times_s, 0.9),
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=None if algorithm is None else algorithm * operation.bus_factor(ranks.n),
    )


def _round_up(n_elements: int, n_ranks: int) -> int:
    """At least one element a rank, and as many for each."""
    return max(1, -(-n_elements // n_ranks)) * n_ranks


def _wrong_ranks(exchange: Exchange, ranks: Ranks) -> tuple[int, ...]:
    """Do it once, and have every rank look at what it got."""
    exchange.call()
    is_wrong = exchange.result is not None and not torch.equal(exchange.result, exchange.expected)
    # Told by broadcasts alone: the fewest ways of being wrong in turn.
    flags = [torch.tensor(float(is_wrong), device=ranks.device) for _ in range(ranks.n)]
    for owner, flag in enumerate(flags):
        dist.broadcast(flag, owner)
    return tuple(owner for owner, flag in enumerate(flags) if flag.item())


def _time(exchange: Exchange, ranks: Ranks, n_repeats: int) -> tuple[float, ...]:
    """Seconds of each repetition, until the slowest rank was done."""
    exchange.given.zero_()  # zeros stay zeros, however often they are summed up
    times_ns = [_once_ns(exchange, ranks) for _ in range(N_WARMUP + n_repeats)][N_WARMUP:]
    slowest = torch.tensor(times_ns, dtype=torch.int64, device=ranks.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return tuple(time_ns * 1e-9 for time_ns in slowest.tolist())


def _once_ns(exchange: Exchange, ranks: Ranks) -> int:
    dist.barrier()
    _wait_for(ranks.device)
    begin = now_ns()
    exchange.call()
    _wait_for(ranks.device)
    return now_ns() - begin


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _percentile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else None


def heading(operation: str) -> str:
    """What stands above an operation's rows: its name, what it does, the columns."""
    words = {one.name: one.words for one in OPERATIONS}
    columns = ("size", "median", "p10", "p90", "S/t GB/s", "bus GB/s")
    return f"\n{operation}: {words[operation]}\n" + "".join(f"{name:>12}" for name in columns)


def row(record: Record) -> str:
    """A record as a line below its operation's heading."""
    size = f"{format_size(record.n_bytes):>12}"
    if record.median_s is None:
        who = ", ".join(map(str, record.wrong_ranks))
        return f"{size}  WRONG RESULT on ranks {who}: not timed"
    times = (record.median_s, record.p10_s, record.p90_s)
    cells = [f"{(time_s or 0.0) * 1e6:,.0f} µs" for time_s in times]
    cells += [f"{rate or 0.0:.3f}" for rate in (record.algorithm_gb_per_s, record.bus_gb_per_s)]
    return size + "".join(f"{cell:>12}" for cell in cells)


def parse_size(text: str) -> int:
    """Bytes from `4096`, `64KiB`, `1MiB`, `2GiB`."""
    match = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB|)", text)
    if match is None or not int(match[1]):
        raise UsageError(f"--sizes has '{text}'; a size is such as 4096, 64KiB or 16MiB")
    return int(match[1]) * UNITS[match[2]]


def format_size(n_bytes: int) -> str:
    """Bytes in the largest unit that leaves a number of one or more."""
    unit = max((name for name in UNITS if UNITS[name] <= n_bytes), key=lambda name: UNITS[name])
    return f"{n_bytes / UNITS[unit]:.4g} {unit or 'B'}"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m hotlap.distributed.collectives",
        description="Check and time what ranks can say to each other.",
    )
    add = parser.add_argument
    add("--sizes", default="4KiB,1MiB,16MiB", help="of the arrays (default: %(default)s)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--repeats", type=int, default=20, metavar="N", help="timed calls (default: %(default)s)")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the records as one JSON document")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it as one of several ranks; 1 where a result was wrong, 2 where it cannot run."""
    try:
        return _main(_parse(argv))
    except UsageError as error:
        print(f"hotlap: {error}", file=sys.stderr)
        return 2


def _main(arguments: argparse.Namespace) -> int:
    launch = detect(os.environ)
    sizes = [parse_size(text) for text in arguments.sizes.split(",")]
    if arguments.repeats < 1:
        raise UsageError(f"--repeats is {arguments.repeats}; one or more are needed")
    if launch.world_size == 1:
        raise UsageError(
            "one process has nobody to talk to; start several, as in "
            "`torchrun --nproc-per-node 2 -m hotlap.distributed.collectives`"
        )
    if launch.rank == ROOT:
        print(f"{n_of(launch.world_size, 'rank')}, nodes: {launch.n_nodes}; {launch.reason}")
    with start(launch, arguments.timeout, device=arguments.device) as started:
        seen = _printer() if launch.rank == ROOT else None
        records = run(sizes, started.device, arguments.repeats, seen=seen)
    if launch.rank == ROOT and arguments.json:
        write_json(arguments.json, {"launch": launch, "records": records})
    return int(any(record.wrong_ranks for record in records))


def _printer() -> Callable[[Record], None]:
    shown = set()

    def show(record: Record) -> None:
        if record.operation not in shown:
            shown.add(record.operation)
            print(heading(record.operation))
        print(row(record), flush=True)

    return show


if __name__ == "__main__":
    leave(main())
