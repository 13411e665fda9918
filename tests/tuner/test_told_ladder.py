"""How a climb and its end are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotlap.records.ladder import Ladder, Rate, Rung
from hotlap.report.ladder import render_header, render_ladder, render_rung


def a_ladder(**fields: Any) -> Ladder:
    """Of a climb that came to its end, with one lever."""
    ladder = Ladder(
        command=("train.py",),
        started="2026-01-01T00:00:00",
        hotlap="0",
        objective="time",
        unit="samples/s",
        status="complete",
        baseline=Rate(100.0, 99.0, 101.0, 4.0 * 2**30, 0.5),
        best=Rate(80.0, 79.0, 81.0, 2.0 * 2**30, 0.25),
        ratio=2.0,
        ratio_low=1.9,
        ratio_high=2.1,
        levers={"workers": "2"},
        rungs=(),
        total_s=60.0,
        notes=(),
    )
    return replace(ladder, **fields)


@pytest.mark.parametrize(
    ("objective", "result"),
    [
        ("time", "2.00x faster [1.90, 2.10]: 100 -> 80 samples/s (60 s)"),
        ("memory", "2.00x smaller [1.90, 2.10]: 4.00 GiB -> 2.00 GiB, at 100 -> 80 samples/s"),
        ("energy", "more samples a joule [1.90, 2.10]: 0.5 J/sample -> 0.25 J/sample, at 100 ->"),
    ],
)
def test_the_result_is_told_in_what_was_to_be_bettered(objective: str, result: str) -> None:
    assert result in render_ladder(a_ladder(objective=objective), "hotlap.toml")


def test_a_budget_of_one_minute_is_told() -> None:
    assert render_header(("train.py",), 60).startswith("hotlap tune: train.py (up to 1 min)\n")


def test_nothing_that_pays_is_told_in_what_was_to_be_bettered() -> None:
    text = render_ladder(a_ladder(objective="memory", levers={}), "hotlap.toml")
    assert "4.00 GiB as it is" in text


def test_a_reason_that_does_not_fit_the_terminal_stands_below() -> None:
    measured = Rung(
        *("workers", "2", "ok", 1234.5, 1200.1, 1290.2, 1.31, 1.3, 1.2, 1.4, 2**30, 0.123),
        *("bit for bit over 60 steps", True, "+31 %"),
    )
    (line,) = render_rung(measured).splitlines()
    first, second = render_rung(measured, 100).splitlines()
    assert len(line) > 100 > len(first)
    assert line.split() == (first + second).split()


def rung(kept: bool, state: str = "ok", reason: str = "") -> Rung:
    figures = (100.0, 90.0, 110.0, 1.0, 1.0, 0.9, 1.1, 2**30, None)
    return Rung("bf16", "autocast", state, *figures, "", kept, reason)  # type: ignore[arg-type]


def test_of_a_lever_that_was_tried_again_the_end_tells_the_last_try() -> None:
    later = a_ladder(rungs=(rung(False, reason="inside the noise"), rung(True)))
    text = render_ladder(later, "hotlap.toml")
    assert "inside the noise" not in text
    assert text.count("bf16=autocast") == 1
    never = a_ladder(rungs=(rung(False, reason="the first"), rung(False, reason="the second")))
    assert "the second" in render_ladder(never, "hotlap.toml")
    assert "the first" not in render_ladder(never, "hotlap.toml")


def test_a_trial_that_died_is_told_though_the_lever_was_kept_later() -> None:
    died = rung(False, "crashed", "it ended with signal SIGILL")
    assert "SIGILL" in render_ladder(a_ladder(rungs=(died, rung(True))), "hotlap.toml")


@pytest.mark.parametrize(
    ("output", "command"),
    [
        ("hotlap.toml", "hotlap run COMMAND"),
        ("fast.toml", "hotlap run --settings fast.toml COMMAND"),
        ("my runs/fast.toml", "hotlap run --settings 'my runs/fast.toml' COMMAND"),
    ],
)
def test_a_climb_ends_with_the_command_that_reads_its_file(output: str, command: str) -> None:
    last = render_ladder(a_ladder(), output).splitlines()[-1]
    assert last == f"  {output} holds these settings; `{command}` applies them"
