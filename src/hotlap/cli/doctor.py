"""`hotlap doctor`: what this machine is, what it can do, and what is set wrong.

With a command, also what limits its step, what each cure is worth, and which lever or edit it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

from hotlap import __version__
from hotlap.cli import options
from hotlap.errors import UsageError
from hotlap.records.severity import SEVERITIES
from hotlap.records.store import RunStore
from hotlap.wording import n_of

STEPS = 50
"""Of a command: enough for figures that are steady to some percent."""

if TYPE_CHECKING:
    from hotlap.distributed.between_ranks import Measured
    from hotlap.doctor.visit import Visit
    from hotlap.machine.probe import Prober
    from hotlap.records.ceilings import Ceilings
    from hotlap.records.finding import Diagnosis
    from hotlap.records.software import Software, Stack
    from hotlap.records.system import System


SIGNALLED = 128
"""As a shell reports an end by a signal: so much more than its number."""
INTERRUPTED = SIGNALLED + 2
"""By Ctrl-C."""
SETTLE_S = 3.0
"""Until the processes of the other ranks have left the GPUs: they are no strangers there."""


def main(argv: Sequence[str]) -> int:
    """Look at the machine and at a command; 1 where a finding is as severe as --fail-on says."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    try:
        diagnosis, asked_by = _diagnose(arguments)
    except KeyboardInterrupt:
        print("hotlap: interrupted; nothing was changed", file=sys.stderr)
        return INTERRUPTED
    if diagnosis is None:
        return 0  # rank 0 tells what all have measured
    try:
        options.write_result(arguments.json, diagnosis)
    finally:
        if not arguments.quiet:
            from hotlap.report.doctor import render_diagnosis

            # A command's standard output stays its own.
            print(render_diagnosis(diagnosis), file=sys.stderr if arguments.command else sys.stdout)
    if asked_by:
        return SIGNALLED + asked_by  # a look that was broken off is no answer
    return int(_is_failed(diagnosis, arguments.fail_on))


def _diagnose(arguments: argparse.Namespace) -> tuple[Diagnosis | None, int]:
    """What is found, None on a rank that only helps to measure; and a signal that ended it."""
    from hotlap.distributed.between_ranks import find_rank, measure_between_ranks
    from hotlap.doctor.examine import examine
    from hotlap.doctor.limit import limits_of
    from hotlap.doctor.rule import Case
    from hotlap.machine.probe import Prober
    from hotlap.machine.storage import Effort
    from hotlap.records.finding import Diagnosis
    from hotlap.records.machine import Machine

    rank, between = find_rank(), None
    if rank is not None and not arguments.no_measure:
        # First of all, so that no rank waits for the other work of rank 0.
        between = measure_between_ranks(0, arguments.quick)
    if rank:
        return None, 0
    if between is not None and any(one.device == "cuda" for one in between.exchanges):
        sleep(SETTLE_S)
    effort = Effort(n_bytes=32 << 20, seconds=0.5) if arguments.quick else Effort()
    prober = Prober(progress=_silent if arguments.quiet else _progress)
    parts = prober.probe(arguments.data, None if arguments.no_measure else effort)
    ceilings = None if arguments.no_measure else _ceilings(parts, arguments, prober, between)
    machine = Machine(*parts, ceilings, tuple(prober.notes))
    visit = _visit(arguments)
    if visit is None:
        findings, notes = examine(Case(machine))
        return Diagnosis(__version__, machine, findings, notes), 0
    case = Case(machine, visit.run, visit.training, visit.what_was_seen, visit.profile)
    findings, notes = examine(case)
    skew = visit.profile.skew if visit.profile else None
    limits = limits_of(visit.training, case.kernels, skew) if visit.training else ()
    diagnosis = Diagnosis(__version__, machine, findings, notes, visit.run, visit.profile, limits)
    return diagnosis, visit.asked_by


def _visit(arguments: argparse.Namespace) -> Visit | None:
    """A short run of the command, if there is one, and another for its kernels."""
    if not arguments.command:
        return None
    from hotlap.doctor.visit import profile_command, visit_command, with_profile

    say = _silent if arguments.quiet else _progress
    say(f"running the command for {n_of(arguments.steps, 'step')}")
    command, runs_dir = arguments.command, arguments.runs_dir
    visit = visit_command(command, runs_dir, arguments.steps, arguments.warmup)
    is_broken_off = visit.asked_by or visit.run.exit_code
    if arguments.no_profile or visit.training is None or is_broken_off:
        return visit
    say("running it again, silently, for a profile of some steps")
    return with_profile(visit, *profile_command(command, runs_dir))


def _ceilings(
    parts: tuple[System, Software, Stack],
    arguments: argparse.Namespace,
    prober: Prober,
    between: Measured | None,
) -> Ceilings:
    """Of the devices and between ranks; alone on several GPUs, ranks are started for it."""
    from hotlap.distributed.between_ranks import measure_between_ranks
    from hotlap.machine.ceilings import find_ceilings

    system, software, _ = parts
    if between is None:
        n_gpus = len(software.torch.devices) if software.torch and not arguments.quick else 0
        if n_gpus > 1:
            prober.progress(f"measuring between {n_gpus} ranks, one a GPU")
        between = measure_between_ranks(n_gpus, arguments.quick)
    found, trouble = find_ceilings(
        system, software, arguments.quick, arguments.fresh, prober.progress
    )
    if trouble:
        prober.notes.append(f"ceilings are not kept for the next time: {trouble}")
    return replace(found, exchanges=between.exchanges, exchanges_note=between.note)


def _progress(text: str) -> None:
    print(f"hotlap: {text}", file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """With --quiet."""


def _is_failed(diagnosis: Diagnosis, fail_on: str | None) -> bool:
    if fail_on is None:
        return False
    bound = [str(severity) for severity in SEVERITIES].index(fail_on)
    return any(SEVERITIES.index(finding.severity) >= bound for finding in diagnosis.findings)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap doctor",
        usage="hotlap doctor [options] [[--] COMMAND …]",
        description="Say what this machine is (System, Software, Stack), what it can really do, "
        "and what is set wrong. With a training command, run it for some steps and say what limits "
        "it, what each cure is worth, and which lever or edit it is. Nothing is changed.",
        epilog="COMMAND is a script (train.py --lr 0.1) or any program (torchrun …); everything "
        "from its first word on is its own. It runs here and is ended after its steps; then once "
        "more, silently, for a profile.",
    )
    parser.add_argument("--quick", action="store_true", help="measure for 10 seconds, not 60")
    parser.add_argument(
        "--no-measure", action="store_true", help="look only: no ceilings, no reading of files"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="measure the ceilings again, also where they are known"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the data of a training lie; its storage is measured (default: here)",
    )
    parser.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        metavar="SEVERITY",
        help="exit with 1 where a finding is this severe: note, advice, warning or error",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    options.add_json(parser)
    parser.add_argument(
        "--steps",
        type=options.positive,
        default=STEPS,
        metavar="N",
        help=f"of a command: end it after N measured steps (default: {STEPS})",
    )
    parser.add_argument(
        "--warmup",
        type=options.not_negative,
        metavar="N",
        help="of a command: leave its first N steps out of the figures (default: a tenth, 1 to 10)",
    )
    parser.add_argument(
        "--no-profile",
        action="store_true",
        help="of a command: do not run it a second time, for a look at its kernels",
    )
    options.add_runs_dir(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    arguments.command = tuple(words)
    _check_command(arguments.command, arguments.runs_dir)
    if not arguments.data.is_dir():
        raise UsageError(f"--data {arguments.data} is no folder; name the one that holds the data")
    return arguments


def _check_command(command: tuple[str, ...], runs_dir: Path) -> None:
    """Before a minute goes into the machine: can it be started, and can its Run be kept?"""
    if not command:
        return
    from hotlap.chronometer.launch import resolve
    from hotlap.distributed.between_ranks import find_rank

    resolve(command)
    if find_rank() is not None:
        raise UsageError(
            "`hotlap doctor COMMAND` was started as one rank of many; "
            "write the launcher into the command: hotlap doctor -- torchrun … train.py"
        )
    RunStore(runs_dir).new_folder().rmdir()
