"""`hotlap submit`: run a command on a cluster's GPUs, without a job script."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotlap.cli import options
from hotlap.errors import UsageError

if TYPE_CHECKING:
    from hotlap.records.job import JobRequest
    from hotlap.slurm.build import Wish

MANY = 20
"""So many alternatives are asked for at most."""


def main(argv: Sequence[str]) -> int:
    """Submit, or say what would be submitted; the exit code."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    from hotlap.slurm.build import build_all, read_commands
    from hotlap.slurm.here import cluster_meant, is_here
    from hotlap.slurm.rights import own_rights

    cluster = cluster_meant(arguments.cluster)
    rights = own_rights() if is_here(cluster) else None
    wish = _wish(arguments)
    commands = read_commands(arguments.commands) if arguments.commands else [arguments.command]
    jobs = build_all(cluster, wish, commands, arguments.gpus, rights)
    if arguments.dry_run:
        return _dry_run([ways[0] for ways in jobs])
    if arguments.when:
        return _when(jobs, arguments)
    return _send([ways[0] for ways in jobs], cluster.name, arguments)


def _dry_run(requests: Sequence[JobRequest]) -> int:
    """The very scripts, on stdout; what they would cost, on stderr."""
    from hotlap.report.jobs import render_cost
    from hotlap.slurm.script import script

    for request in requests:
        text = script(request)
        print(render_cost(request), file=sys.stderr)
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    return 0


def _when(jobs: Sequence[Sequence[JobRequest]], arguments: argparse.Namespace) -> int:
    from hotlap.report.jobs import render_cost, render_starts
    from hotlap.slurm.send import alternatives, start_of

    found = []
    for ways in jobs:
        starts = [start_of(request) for request in alternatives(ways)[:MANY]]
        found.append(starts)
        print(render_cost(ways[0]))
        print(render_starts([(one.request, one.at, one.said) for one in starts]))
    options.write_result(arguments.json, found)
    return 0


def _send(requests: Sequence[JobRequest], cluster: str, arguments: argparse.Namespace) -> int:
    from hotlap.report.jobs import render_cost, render_sent
    from hotlap.slurm.script import script
    from hotlap.slurm.send import send

    for request in requests:
        script(request)  # what is wrong with the last is said before the first is sent
    sent = []
    try:
        for request in requests:
            if not arguments.quiet:
                print(render_cost(request), file=sys.stderr)
            sent.append(send(request, cluster))
            print(sent[-1].id if arguments.quiet else render_sent(sent[-1]), flush=True)
    finally:
        options.write_result(arguments.json, sent)
    return 0


def _wish(arguments: argparse.Namespace) -> Wish:
    from hotlap.records.job import Ask, Requeue, Surroundings
    from hotlap.slurm.build import Wish

    around = Surroundings(
        modules=tuple(arguments.module),
        conda=arguments.conda,
        venv=arguments.venv,
        container=arguments.container,
        binds=tuple(arguments.bind),
        environment=dict(arguments.env),
    )
    requeue = Requeue(round(arguments.requeue_before * 60), arguments.attempts)
    ask = Ask(
        gpus=1,
        hours=arguments.hours,
        gpu=arguments.gpu,
        gpus_per_node=arguments.gpus_per_node,
        partition=arguments.partition,
        qos=arguments.qos,
        account=arguments.account,
        constraint=arguments.constraint,
    )
    return Wish(
        ask=ask,
        cwd=Path.cwd(),
        runs_dir=arguments.runs_dir.absolute(),
        name=arguments.name,
        surroundings=around,
        array=arguments.array,
        after=arguments.after,
        mail=arguments.mail,
        directives=tuple(arguments.directive),
        requeue=requeue if arguments.requeue else None,
        measure=_measure(arguments),
        measure_options=_measure_options(arguments),
    )


def _measure(arguments: argparse.Namespace) -> str | None:
    return "tune" if arguments.tune else "time" if arguments.time else None


def _measure_options(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What is wrong with them is said now, and not when the job has waited its time."""
    measure = _measure(arguments)
    try:
        words = shlex.split(arguments.options)
    except ValueError as error:
        raise UsageError(f"--options is {arguments.options!r}: {error}") from None
    if words and measure is None:
        raise UsageError("--options are those of --tune or --time, and neither was given")
    from hotlap.cli import time, tune

    parse = {"tune": tune.parse, "time": time.parse}
    if measure is not None:
        parse[measure]([*words, "--", "command"])
    return tuple(words)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap submit",
        usage="hotlap submit --hours T [options] [--] COMMAND …",
        description="Run a command on a cluster's GPUs: nodes, tasks, cores, partition, QoS and "
        "account follow from how many GPUs are wanted for how long. The command runs once a GPU "
        "with the variables that torch.distributed reads, or once a node if it is torchrun.",
        epilog="The script and the logs of each job are kept in .hotlap/jobs/.",
    )
    _add_resources(parser)
    _add_surroundings(parser)
    _add_job(parser)
    options.add_json(parser)
    options.add_runs_dir(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    arguments.command = tuple(command)
    if bool(command) == bool(arguments.commands):
        raise UsageError(
            "a command is expected, written last, or --commands FILE with one a line: "
            f"{'both' if command else 'neither'} was given"
        )
    if arguments.hours is None:
        raise UsageError("--hours is missing: how long the job may run, as --hours 5 or 0.5")
    return arguments


def _add_resources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is wanted")
    group.add_argument(
        "--gpus", type=_counts, default=(1,), metavar="N[,N…]", help="in all; a list is many jobs"
    )
    group.add_argument("--hours", type=options.above_zero, metavar="T", help="the time limit")
    group.add_argument("--gpu", metavar="KIND", help="as h100, or v100-32gb")
    group.add_argument("--cluster", metavar="NAME", help="(default: the one that is here)")
    group.add_argument("--gpus-per-node", type=options.positive, metavar="N")
    for name in ("partition", "qos", "account", "constraint"):
        group.add_argument(f"--{name}", metavar="NAME", help="instead of what hotlap chooses")


def _add_surroundings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the command finds")
    group.add_argument("--module", action="append", default=[], metavar="NAME")
    group.add_argument("--conda", metavar="ENV", help="an environment's name or path")
    group.add_argument("--venv", metavar="DIR")
    group.add_argument("--container", metavar="IMAGE", help="for Apptainer or Singularity")
    group.add_argument("--bind", action="append", default=[], metavar="DIR", help="seen in it too")
    group.add_argument("--env", action="append", default=[], type=_variable, metavar="NAME=VALUE")


def _add_job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument("--name", help="(default: the script's)")
    instead = group.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="print the script, send nothing")
    instead.add_argument("--when", action="store_true", help="start times of the alternatives")
    group.add_argument("--commands", type=Path, metavar="FILE", help="several, one a line")
    group.add_argument("--array", metavar="0-9%2", help="many tasks; $SLURM_ARRAY_TASK_ID tells")
    group.add_argument("--after", metavar="JOB", help="start when that one has ended well")
    group.add_argument("--mail", metavar="ADDRESS")
    group.add_argument("--directive", action="append", default=[], metavar="--OPTION[=VALUE]")
    group.add_argument("--requeue", action="store_true", help="come back after limit or preemption")
    group.add_argument("--requeue-before", type=options.above_zero, default=3.0, metavar="MINUTES")
    group.add_argument("--attempts", type=options.positive, default=50, metavar="N")
    measure = group.add_mutually_exclusive_group()
    measure.add_argument("--tune", action="store_true", help="`hotlap tune` the command there")
    measure.add_argument("--time", action="store_true", help="`hotlap time` the command there")
    group.add_argument(
        "--options", default="", metavar="TEXT", help="of --tune or --time, as '--budget 30'"
    )
    group.add_argument("--quiet", action="store_true", help="print the job's number only")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(options.positive(part) for part in text.split(","))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"'{text}' was found; NAME=VALUE is expected")
    return name, value
