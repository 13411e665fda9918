"""`hotlap compare A B`: two Runs side by side, and whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotlap.cli import options
from hotlap.errors import UsageError
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run
from hotlap.records.store import RunStore


def main(argv: Sequence[str]) -> int:
    """Compare two Runs."""
    parser = options.Parser(
        prog="hotlap compare",
        description="Show two Runs side by side, their ratio, and whether it is outside the noise.",
        epilog="A and B are ids, the start or end of ids, folders, or `last`.",
    )
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    options.add_json(parser)
    options.add_runs_dir(parser)
    arguments = parser.parse_args(argv)
    options.check_json_target(arguments.json)
    store = options.open_store(arguments.runs_dir)
    a, a_ranks = _load(store, arguments.a)
    b, b_ranks = _load(store, arguments.b)
    from hotlap.chronometer.compare import compare
    from hotlap.report.terminal import render_comparison

    comparison = compare(a, b, a_ranks, b_ranks)
    options.write_result(arguments.json, comparison)
    ratio = comparison.ratio
    print(render_comparison(a, b, (ratio.value, ratio.low, ratio.high), comparison.notes))
    return 0


def _load(store: RunStore, name: str) -> tuple[Run, list[RankRecord]]:
    folder = store.find(name)
    run = Run.read(folder)
    if run.step_s is None:
        raise UsageError(f"Run {run.id} has no measured steps; there is nothing to compare")
    return run, _ranks(folder, run)


def _ranks(folder: Path, run: Run) -> list[RankRecord]:
    from hotlap.chronometer.merge import training_ranks

    records, _ = training_ranks(
        RankRecord.read(path) for path in sorted(folder.glob("rank-*.json"))
    )
    if not records:
        raise UsageError(f"Run {run.id} has lost its rank files in {folder}; compare needs them")
    n_steps = run.steps.warmup + run.steps.measured
    if min(len(record.steps.total_ns) for record in records) < n_steps:
        raise UsageError(f"{folder} is damaged: its rank files hold fewer than {n_steps} steps")
    return records
