"""How long it takes to merge the rank files of 1,024 ranks into one Run.

Writes rank files of 100 steps each, as 1,024 ranks would have left them on a shared file system,
then reads and merges them several times. The baseline in the same run is reading the same files
as plain JSON, which no merge can do without. Required: under 5 s.

    python benchmarks/merge_ranks.py
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from hotlap.chronometer.launch import collect_ranks
from hotlap.chronometer.merge import Ending, merge
from hotlap.records.rank import RankRecord, StepTable

N_RANKS, N_STEPS, REPEATS = 1024, 100, 5


def rank_record(rank: int) -> RankRecord:
    """What one rank measured; later ranks are a little slower."""
    phases = {
        name: tuple(3_000_000 + rank * 100 + i for i in range(N_STEPS))
        for name in ("data", "transfer", "forward", "backward", "optimizer", "other")
    }
    return RankRecord(
        rank=rank,
        world_size=N_RANKS,
        host=f"node{rank // 8:03d}",
        pid=1000 + rank,
        process={"torch": "2.13.0"},
        ended=True,
        cut=False,
        out_of_memory=False,
        seen={},
        first_load_ns=50_000_000,
        steps=StepTable(
            total_ns=tuple(map(sum, zip(*phases.values(), strict=True))),
            **{f"{name}_ns": column for name, column in phases.items()},  # type: ignore[arg-type]
            is_probe=(0,) * N_STEPS,
            end_ns=tuple(18_000_000 * (i + 1) for i in range(N_STEPS)),
            samples=(32,) * N_STEPS,
            loss=tuple(2.0 - i / N_STEPS for i in range(N_STEPS)),
            flops=(1e12,) * N_STEPS,
        ),
        validations=(),
        device_peak_bytes=None,
        device_reserved_bytes=None,
        host_peak_bytes=1 << 30,
        power=(),
        notes=(),
    )


def merge_folder(folder: Path) -> None:
    """What the launcher does at the end of a command."""
    records, notes = collect_ranks(folder)
    run = merge(
        records,
        run_id="benchmark",
        command=("train.py",),
        started="",
        machine={},
        ending=Ending("ok", 0, 1.0, tuple(notes)),
        warmup=None,
    )
    run.write(folder)
    assert len(run.ranks) == N_RANKS
    assert run.samples_per_s is not None


def timed(action: object, folder: Path) -> list[float]:
    """Seconds of each of several repetitions."""
    assert callable(action)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action(folder)
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(N_RANKS):
            rank_record(rank).write(folder)

        def read_plain(folder: Path) -> None:
            for path in folder.glob("rank-*.json"):
                json.loads(path.read_text())

        plain, ours = timed(read_plain, folder), timed(merge_folder, folder)
        size = sum(path.stat().st_size for path in folder.glob("rank-*.json"))
    print(f"python {platform.python_version()}, {os.cpu_count()} CPUs, {REPEATS} repetitions each")
    for title, times in (("reading as plain JSON", plain), ("reading and merging", ours)):
        print(
            f"{title}: median {statistics.median(times):.2f} s [{min(times):.2f}, {max(times):.2f}]"
        )
    ratio = statistics.median(ours) / statistics.median(plain)
    print(f"{N_RANKS} files, {size / 1e6:.1f} MB; ratio {ratio:.1f}; required: under 5 s")


if __name__ == "__main__":
    main()
