"""Under hotlap torch.compile makes the same graphs, graph breaks and recompiles as without."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from running import Command, Result, RunCache

WORDS = {
    f"{style}{'-ragged' if ragged else ''}": ("compiled_model.py", "--style", style, *ragged)
    for style in ("module", "method", "step", "sequential")
    for ragged in ((), ("--ragged",))
}
COMPARED = {name: (Command(words, is_alone=True), Command(words)) for name, words in WORDS.items()}


def compiler_line(result: Result) -> str:
    """What the compiler counted."""
    assert result.code == 0, result.stderr.decode()
    (line,) = [one for one in result.stdout.decode().splitlines() if one.startswith("graphs ")]
    return line


def without_times(log: bytes) -> bytes:
    """The log without the times and process ids in front of its lines."""
    return re.sub(rb"(?m)^([WIE])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ", rb"\1 ", log)


@pytest.mark.parametrize("commands", COMPARED.values(), ids=list(COMPARED))
def test_no_graph_break_or_recompile_is_added(
    runs: RunCache, commands: tuple[Command, Command]
) -> None:
    alone, measured = (runs(command) for command in commands)
    assert compiler_line(measured) == compiler_line(alone)
    assert measured.stdout == alone.stdout
    assert without_times(measured.stderr) == without_times(alone.stderr)


@pytest.mark.parametrize("command", [COMPARED["module-ragged"][1]])
def test_a_smaller_last_batch_is_counted_as_such(runs: RunCache, command: Command) -> None:
    result = runs(command)
    assert sum(result.ranks[0]["steps"]["samples"]) == result.truth["samples"]
    assert result.n_steps == runs(replace(command, words=WORDS["module"])).n_steps
