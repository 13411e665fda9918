"""`hotlap runs`: list what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.cli import options
from hotlap.errors import RecordError
from hotlap.records.codec import to_json
from hotlap.records.run import Run
from hotlap.report.terminal import command_text, levers_text, quantity, seconds

COLUMNS = "{:<24} {:<7} {:>6} {:>10} {:>12}  {}"


def main(argv: Sequence[str]) -> int:
    """List the Runs of a folder, oldest first."""
    parser = options.Parser(
        prog="hotlap runs", description="List the Runs that were measured here, oldest first."
    )
    parser.add_argument("--last", type=options.positive, metavar="N", help="only the N newest")
    options.add_json(parser)
    options.add_runs_dir(parser)
    arguments = parser.parse_args(argv)
    options.check_json_target(arguments.json)
    store = options.open_store(arguments.runs_dir)
    entries = list(store.read_all(arguments.last))
    options.write_result(
        arguments.json, [to_json(run) for _, run in entries if isinstance(run, Run)]
    )
    if not entries:
        print(f"no Runs in {store.root}; `hotlap time COMMAND` makes one")
        return 0
    print(COLUMNS.format("id", "status", "steps", "step", "samples/s", "command"))
    for folder, run in entries:
        if isinstance(run, RecordError):
            print(COLUMNS.format(folder.name, "damaged", "", "", "", str(run)))
        else:
            print(_line(run))
    return 0


def _line(run: Run) -> str:
    return COLUMNS.format(
        run.id,
        run.status,
        run.steps.measured,
        seconds(run.step_s.mean) if run.step_s else "-",
        quantity(run.samples_per_s) if run.samples_per_s is not None else "-",
        command_text(run.command) + levers_text(run),
    )
