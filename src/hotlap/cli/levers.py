"""`hotlap levers`: what the tuner can change, without a command to try it on."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

from hotlap.cli import options
from hotlap.levers import check_names, find_levers
from hotlap.levers.common.lever import Lever

COLUMNS = "  {:<18} {:<8}  {}"
WIDTH = 100


def main(argv: Sequence[str]) -> int:
    """List all levers, or tell all that is known of some."""
    parser = options.Parser(
        prog="hotlap levers",
        description="List the levers of `hotlap tune` and `hotlap run`; with names, tell when each "
        "pays, what it costs and which values it takes.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="tell everything about these")
    parser.add_argument(
        "--lever-file", action="append", default=[], metavar="FILE", help="further levers of yours"
    )
    options.add_json(parser)
    arguments = parser.parse_args(argv)
    options.check_json_target(arguments.json)
    levers = find_levers(arguments.lever_file)
    check_names(arguments.names, levers)
    by_name = {one.name: one for one in levers}
    chosen = [by_name[name] for name in arguments.names or by_name]
    options.write_result(arguments.json, [_document(one) for one in chosen])
    print("\n\n".join(map(_told, chosen)) if arguments.names else _table(chosen))
    return 0


def _table(levers: Sequence[Lever]) -> str:
    rows = [COLUMNS.format(one.name, one.changes, one.summary) for one in levers]
    return "\n".join(
        [
            COLUMNS.format("lever", "changes", "what it does"),
            *rows,
            "",
            "  nothing: each loss bit for bit, unless random numbers are drawn elsewhere;",
            "  rounding: within the lever's bound; maths: kept by `hotlap tune --allow NAME` only.",
            "  `hotlap levers NAME` tells more of one.",
        ]
    )


def _told(lever: Lever) -> str:
    """Its own text, and how it is asked for."""
    changes = f"{lever.changes} (relative {lever.bound:g})" if lever.bound else lever.changes
    facts = {
        "changes": changes,
        "risk": lever.risk,
        "values": lever.takes.expected.rstrip(","),
        "needs": ", ".join(lever.needs),
        "instead of": ", ".join(lever.instead_of),
        "guard": "compares curves: random numbers are drawn elsewhere" * lever.new_randomness,
    }
    text = "\n\n".join(map(_paragraph, _about(lever).split("\n\n")))
    lines = [f"    {name:<12}{value}" for name, value in facts.items() if value]
    return "\n".join([lever.name, "", text, "", *lines])


def _paragraph(text: str) -> str:
    """Filled, unless it is indented: a table stays as it is."""
    if text.startswith(" "):
        return textwrap.indent(text, "  ")
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _about(lever: Lever) -> str:
    """What the file of the lever says of it: when it pays, and what it costs."""
    module = inspect.getmodule(lever.edit)
    return inspect.getdoc(module) or lever.summary if module else lever.summary


def _document(lever: Lever) -> dict[str, Any]:
    return {
        "name": lever.name,
        "summary": lever.summary,
        "about": _about(lever),
        "changes": lever.changes,
        "bound": lever.bound,
        "new_randomness": lever.new_randomness,
        "risk": lever.risk,
        "values": lever.takes.expected.rstrip(","),
        "needs": lever.needs,
        "instead_of": lever.instead_of,
    }
