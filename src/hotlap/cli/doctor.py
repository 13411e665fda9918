"""`hotlap doctor`: what this machine is, what it can do, and what is set wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hotlap import __version__
from hotlap.cli import options
from hotlap.errors import UsageError
from hotlap.records.finding import SEVERITIES, Diagnosis


def main(argv: Sequence[str]) -> int:
    """Look at the machine; 1 where a finding is as severe as --fail-on says."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    diagnosis = _diagnose(arguments)
    options.write_result(arguments.json, diagnosis)
    if not arguments.quiet:
        from hotlap.report.doctor import render_diagnosis

        print(render_diagnosis(diagnosis))
    return int(_is_failed(diagnosis, arguments.fail_on))


def _diagnose(arguments: argparse.Namespace) -> Diagnosis:
    from hotlap.doctor.examine import examine
    from hotlap.doctor.rule import Case
    from hotlap.machine.probe import Prober
    from hotlap.machine.storage import Effort

    effort = Effort(n_bytes=32 << 20, seconds=0.5) if arguments.quick else Effort()
    prober = Prober(progress=_progress if not arguments.quiet else _silent)
    parts = prober.probe(arguments.data, effort)
    machine = prober.machine(parts, None)
    findings, notes = examine(Case(machine))
    return Diagnosis(__version__, machine, findings, notes)


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
        description="Say what this machine is (System, Software, Stack), what it can really do, "
        "and what is set wrong. Nothing is changed.",
    )
    parser.add_argument("--quick", action="store_true", help="measure for 10 seconds, not 60")
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
    arguments = parser.parse_args(argv)
    if not arguments.data.is_dir():
        raise UsageError(f"--data {arguments.data} is no folder; name the one that holds the data")
    return arguments
