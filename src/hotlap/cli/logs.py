"""`hotlap logs`: what jobs printed, followed or searched."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hotlap.cli import options
from hotlap.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Show logs; the exit code, which is 1 where a search found nothing."""
    arguments = _parse(argv)
    from hotlap.slurm.find import find_logs
    from hotlap.slurm.follow import streams

    logs = find_logs(arguments.job, arguments.runs_dir.absolute())
    files = streams(logs, "err" if arguments.err else "out" if arguments.out else "both")
    if arguments.search is not None:
        return _search(files, arguments.search)
    if arguments.follow:
        return _follow(files, [one.id for one in logs])
    return _show(files)


def _show(files: Sequence[tuple[str, Path]]) -> int:
    for heading, path in files:
        if not path.exists():
            print(f"==> {heading}: nothing yet ({path})", file=sys.stderr)
            continue
        if len(files) > 1:
            print(f"==> {heading}", flush=True)
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()
    return 0


def _search(files: Sequence[tuple[str, Path]], text: str) -> int:
    from hotlap.slurm.follow import search

    found = False
    for heading, number, line in search(files, text):
        found = True
        print(f"{heading}:{number}: {line}")
    return 0 if found else 1


def _follow(files: Sequence[tuple[str, Path]], numbers: Sequence[str]) -> int:
    from hotlap.slurm.follow import follow

    last = ""

    def show(heading: str, new: bytes) -> None:
        nonlocal last
        if heading != last and len(files) > 1:
            print(f"==> {heading}", flush=True)
        last = heading
        sys.stdout.buffer.write(new)
        sys.stdout.buffer.flush()

    try:
        follow(files, numbers, show)
    except KeyboardInterrupt:
        return 0
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap logs",
        usage="hotlap logs JOB [-f] [--search TEXT] [--out | --err]",
        description="What a job printed. JOB is a number (12, or 12_3 for one task of an array), a "
        "name, a pattern of names ('train*'), or `last`.",
    )
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("-f", "--follow", action="store_true", help="until the job is over")
    parser.add_argument("--search", metavar="TEXT", help="only the lines that hold it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--out", action="store_true", help="stdout only")
    which.add_argument("--err", action="store_true", help="stderr only")
    options.add_runs_dir(parser)
    arguments = parser.parse_args(argv)
    if arguments.follow and arguments.search is not None:
        raise UsageError("--follow and --search do not go together: leave one out")
    return arguments
