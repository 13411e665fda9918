"""`hotlap profile`: the Run of a command, and a short look at its kernels and operators."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotlap.cli import options
from hotlap.errors import UsageError

if TYPE_CHECKING:
    from hotlap.records.profile import Profile

WARMUP = 8
STEPS = 4


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code is the command's own."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    _check_trace_target(arguments.trace)
    from hotlap.chronometer.launch import TimeRequest, exit_like, time_command, why_empty
    from hotlap.chronometer.profile.collect import make_profile
    from hotlap.chronometer.profile.roof import Roofs
    from hotlap.chronometer.profile.window import Orders

    orders = Orders(
        warmup=arguments.warmup,
        steps=arguments.steps,
        line_steps=0 if arguments.no_stacks else 1,
        ends_run=arguments.stop,
    )
    outcome = time_command(
        TimeRequest(arguments.command, arguments.runs_dir, environment=orders.to_environment())
    )
    profile = make_profile(outcome.folder, outcome.run, Roofs())
    _copy_trace(outcome.folder, profile, arguments.trace)
    options.write_result(arguments.json, {"run": outcome.run, "profile": profile})
    if not arguments.quiet:
        from hotlap.report.profile import render_profile
        from hotlap.report.terminal import render_run

        if outcome.run.step_s is None:
            print(
                f"hotlap: no training step was measured: {why_empty(outcome)}",
                file=sys.stderr,
            )
        else:
            print("\n" + render_run(outcome.run, f"Run {outcome.run.id}"), file=sys.stderr)
        print("\n" + render_profile(profile, outcome.folder), file=sys.stderr)
    return exit_like(outcome.run.exit_code)


def _check_trace_target(path: Path | None) -> None:
    """Find out before anything runs that the trace could not be copied there."""
    if path is None:
        return
    if not path.name.endswith(".json.gz"):
        raise UsageError(f"--trace {path} is no name for a compressed trace; end it in .json.gz")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"--trace {path} cannot be written: no such folder, or no permission")


def _copy_trace(folder: Path, profile: Profile, target: Path | None) -> None:
    """Of rank 0; those of the others are beside it in the Run's folder."""
    kept = next((rank.trace for rank in profile.ranks if rank.trace), None)
    if target is not None and kept is not None:
        shutil.copyfile(folder / kept, target)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap profile",
        usage="hotlap profile [options] [--] COMMAND …",
        description="Run a training command as `hotlap time` does, with torch's profiler on for a "
        "few steps after the warm-up, and say what its kernels and operators are, where they come "
        "from, and where the host waits for the device.",
        epilog="COMMAND is a script (train.py --lr 0.1) or any program (torchrun …, python -m …); "
        "everything from its first word on is its own.",
    )
    parser.add_argument(
        "--steps",
        type=options.positive,
        default=STEPS,
        metavar="N",
        help=f"steps in the window (default: {STEPS}); one more is looked at for source lines",
    )
    parser.add_argument(
        "--warmup",
        type=options.positive,
        default=WARMUP,
        metavar="N",
        help=f"steps before the window (default: {WARMUP})",
    )
    parser.add_argument(
        "--no-stacks", action="store_true", help="leave source lines and synchronisations out"
    )
    parser.add_argument(
        "--stop", action="store_true", help="end the command once its profile is made"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="copy the trace there (.json.gz, for Perfetto)"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing of hotlap's own")
    options.add_json(parser)
    options.add_runs_dir(parser)
    return options.parse_with_command(parser, argv, "hotlap profile train.py --lr 0.1")
