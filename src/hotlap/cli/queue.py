"""`hotlap queue`: your jobs, why they wait, and when they start."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from hotlap.cli import options

CLEAR = "\x1b[H\x1b[2J"


def main(argv: Sequence[str]) -> int:
    """Show the queue; the exit code."""
    parser = options.Parser(
        prog="hotlap queue",
        description="Your jobs that wait or run: state and reason in words, priority and what "
        "raises it, when they start, GPU hours used.",
    )
    parser.add_argument(
        "--live",
        type=options.positive,
        nargs="?",
        const=30,
        metavar="SECONDS",
        help="show it again and again until no job is left (default: every 30 s)",
    )
    options.add_json(parser)
    arguments = parser.parse_args(argv)
    options.check_json_target(arguments.json)
    from hotlap.report.queue import render_queue
    from hotlap.slurm.own_jobs import own_jobs

    while True:
        jobs = own_jobs()
        options.write_result(arguments.json, jobs)
        is_shown_over = arguments.live is not None and sys.stdout.isatty()
        print(f"{CLEAR if is_shown_over else ''}{render_queue(jobs)}", flush=True)
        if arguments.live is None or not jobs:
            return 0
        try:
            time.sleep(arguments.live)
        except KeyboardInterrupt:
            return 0
