"""`hotlap run`: run a command with the levers of `hotlap.toml`, or with those that are named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotlap.cli import options

if TYPE_CHECKING:
    from hotlap.levers.common.lever import Lever
    from hotlap.levers.common.workload import Events, Workload
    from hotlap.tuner.settings import SettingsFile


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code is the command's own."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    from hotlap.chronometer.launch import TimeRequest, exit_like, time_command
    from hotlap.cli.time import finish
    from hotlap.levers import find_levers
    from hotlap.levers.common.inside import Orders
    from hotlap.levers.common.workload import read_events
    from hotlap.tuner.settings import SettingsFile, read_settings, values_of
    from hotlap.tuner.trial import environment_of
    from hotlap.tuner.tune import host_workload

    files = tuple(str(Path(file).resolve()) for file in arguments.lever_file)
    levers = find_levers(files)
    workload = host_workload()
    if arguments.levers is None:
        asked, source = read_settings(arguments.settings), str(arguments.settings)
    else:
        asked, source = SettingsFile(_asked(arguments.levers)), "--levers"
    values = values_of(asked.levers, levers, workload, source)
    environment = environment_of(levers, values, workload)
    environment |= Orders(values, lever_files=files).to_environment()
    outcome = time_command(
        TimeRequest(
            arguments.command,
            arguments.runs_dir,
            arguments.steps,
            arguments.warmup,
            levers=values,
            environment=environment,
        )
    )
    code = finish(outcome, arguments)
    if not arguments.quiet:
        _tell(values, levers, workload, read_events(outcome.folder))
        _tell_of_settings(asked, values, arguments.command, source)
    return exit_like(code)


def _asked(text: str) -> dict[str, str]:
    """`a,b=value` by name; a name alone has no value."""
    words = [word.partition("=") for word in text.split(",") if word]
    return {name: value for name, _, value in words}


def _tell(
    values: dict[str, str], levers: Sequence[Lever], workload: Workload, events: Events
) -> None:
    """Which levers took effect: a setting that does nothing must not go unseen."""
    for lever in levers:
        if lever.name not in values:
            continue
        value = values[lever.name]
        variables = [f"{k}={v}" for k, v in lever.environment(value, workload).items()]
        if lever.name in events.failed:
            text = f"could not be applied: {events.failed[lever.name]}"
        else:
            done = dict.fromkeys([*events.done.get(lever.name, []), *variables])
            text = "; ".join(done) or "found nothing to change"
        print(f"  lever {lever.name}={value}: {text}", file=sys.stderr)


def _tell_of_settings(
    asked: SettingsFile, values: dict[str, str], command: Sequence[str], source: str
) -> None:
    """Settings that hold nothing, or were found for something else."""
    from hotlap.tuner.settings import other_script

    scripts = other_script(asked.command, command) if asked.command else None
    if not values:
        print(f"  {source} names no lever: the command ran as it is", file=sys.stderr)
    elif scripts:
        tuned, ran = scripts
        print(
            f"  note: {source} was tuned for {tuned}; its levers are applied to {ran}",
            file=sys.stderr,
        )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap run",
        usage="hotlap run [options] [--] COMMAND …",
        description="Run a training command with the levers that `hotlap tune` kept, without a "
        "change to the script. The Run is kept in .hotlap/, as with `hotlap time`.",
    )
    parser.add_argument(
        "--levers", metavar="A,B=VALUE", help="these levers instead of the settings file"
    )
    parser.add_argument(
        "--settings", type=Path, default=Path("hotlap.toml"), metavar="FILE", help="settings file"
    )
    parser.add_argument(
        "--lever-file", action="append", default=[], metavar="FILE", help="further levers of yours"
    )
    options.add_measuring(parser)
    return options.parse_with_command(parser, argv, "hotlap run train.py --lr 0.1")
