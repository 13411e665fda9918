"""`hotlap levers`: all of them on a screen, and all that is known of one."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from hotlap.cli import main
from hotlap.levers import LEVERS
from hotlap.levers.common.lever import Lever

OWN = """
from hotlap.levers.common.lever import Decision, Lever

LEVERS = (
    Lever(
        name="mine",
        summary="does what I want",
        changes="maths",
        risk="danger zone",
        phases=("forward",),
        saves=lambda workload: 0.1,
        values=lambda workload: ("on",),
        applies=lambda workload: Decision(True, "always so"),
        edit=lambda value, workload: (),
    ),
)
"""


def test_every_lever_is_listed_with_what_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["levers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for lever in LEVERS:
        (line,) = [one for one in lines if one.split()[:1] == [lever.name]]
        assert line.split()[1] == lever.changes
        assert line.endswith(lever.summary)


def test_of_one_it_is_told_when_it_pays_and_what_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["levers", "workers", "bf16"]) == 0
    text = capsys.readouterr().out
    assert text.index("workers") < text.index("bf16:")
    assert "When: the step waits for data" in text
    assert "values      a whole number of at least 1" in text
    assert "guard       compares curves" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_tables_of_a_card_stay_tables(lever: Lever, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["levers", lever.name]) == 0
    told = capsys.readouterr().out.splitlines()
    card = inspect.getdoc(inspect.getmodule(lever.edit)) or ""
    for line in card.splitlines():
        assert not line.startswith(" ") or f"  {line}" in told


def test_levers_of_a_users_own_file_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, document = tmp_path / "own.py", tmp_path / "levers.json"
    file.write_text(OWN)
    assert main(["levers", "mine", "--lever-file", str(file), "--json", str(document)]) == 0
    assert "does what I want" in capsys.readouterr().out
    (told,) = json.loads(document.read_text())
    assert (told["name"], told["changes"], told["about"]) == ("mine", "maths", "does what I want")


def test_what_is_no_lever_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["levers", "banana"]) == 2
    assert "'banana' is no lever; there are affinity," in capsys.readouterr().err
