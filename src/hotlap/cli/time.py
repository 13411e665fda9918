"""`hotlap time`: run a training command unchanged and say where its step goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.cli import options

if TYPE_CHECKING:
    from hotlap.chronometer.launch import Outcome


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code is the command's own."""
    return measure(parse(argv))


def measure(arguments: argparse.Namespace, is_told_empty: bool = True) -> int:
    """Run the command of parsed arguments and tell what was measured."""
    options.check_json_target(arguments.json)
    from hotlap.chronometer.launch import TimeRequest, exit_like, time_command

    outcome = time_command(
        TimeRequest(arguments.command, arguments.runs_dir, arguments.steps, arguments.warmup)
    )
    return exit_like(finish(outcome, arguments, is_told_empty))


def finish(
    outcome: Outcome, arguments: argparse.Namespace, is_told_empty: bool = True
) -> int | None:
    """Tell what was measured; the command's exit code.

    Where no step was measured that is told too, unless the command has said why itself.
    """
    from hotlap.chronometer.launch import why_empty
    from hotlap.report.terminal import render_run

    options.write_result(arguments.json, outcome.run)
    if not arguments.quiet:
        if outcome.run.step_s is not None:
            print("\n" + render_run(outcome.run, f"Run {outcome.run.id}"), file=sys.stderr)
        elif is_told_empty:
            print(
                f"hotlap: no training step was measured: {why_empty(outcome)}",
                *(f"  note: {note}" for note in outcome.run.notes),
                sep="\n",
                file=sys.stderr,
            )
    return outcome.run.exit_code


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap time",
        usage="hotlap time [options] [--] COMMAND …",
        description="Run a training command exactly as it would run without hotlap, and say "
        "afterwards, on stderr, where its step goes. The Run is kept in .hotlap/.",
        epilog="COMMAND is a script (train.py --lr 0.1) or any program (torchrun …, python -m …); "
        "everything from its first word on is its own. A sample is one element of the first "
        "dimension of the first tensor of a batch.",
    )
    options.add_measuring(parser)
    return options.parse_with_command(parser, argv, "hotlap time train.py --lr 0.1")
