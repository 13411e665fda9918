"""`hotlap time`: run a training command unchanged and say where its step goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hotlap.cli import options
from hotlap.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code is the command's own."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    from hotlap.chronometer.launch import TimeRequest, describe_seen, exit_like, time_command
    from hotlap.report.terminal import render_run

    outcome = time_command(
        TimeRequest(arguments.command, arguments.runs_dir, arguments.steps, arguments.warmup)
    )
    options.write_result(arguments.json, outcome.run)
    if not arguments.quiet:
        if outcome.run.step_s is None:
            print(
                f"hotlap: no training step was measured: {describe_seen(outcome.seen)}",
                *(f"  note: {note}" for note in outcome.run.notes),
                sep="\n",
                file=sys.stderr,
            )
        else:
            print("\n" + render_run(outcome.run, f"Run {outcome.run.id}"), file=sys.stderr)
    return exit_like(outcome.run.exit_code)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap time",
        usage="hotlap time [options] [--] COMMAND …",
        description="Run a training command exactly as it would run without hotlap, and say "
        "afterwards, on stderr, where its step goes. The Run is kept in .hotlap/.",
        epilog="COMMAND is a script (train.py --lr 0.1) or any program (torchrun …, python -m …); "
        "everything from its first word on is its own.",
    )
    parser.add_argument(
        "--steps", type=options.positive, metavar="N", help="end the run after N measured steps"
    )
    parser.add_argument(
        "--warmup",
        type=options.not_negative,
        metavar="N",
        help="leave the first N steps out of the figures (default: a tenth, 1 to 10)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing of hotlap's own")
    options.add_json(parser)
    options.add_runs_dir(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError(
            "no command was given; write it last, as in `hotlap time train.py --lr 0.1`"
        )
    arguments.command = tuple(command)
    return arguments
