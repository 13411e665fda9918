"""How a climb and its end are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated import World

from hotlap.records.ladder import Ladder, Rate, Rung, Trial
from hotlap.report.ladder import render_baseline, render_ladder, render_rung, render_title


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


def without_figures(lever: str, value: str, state: str, reason: str) -> Rung:
    return Rung(lever, value, state, *(None,) * 9, "", False, reason)  # type: ignore[arg-type]


def test_what_the_budget_cut_short_is_told_with_what_it_had_no_time_for() -> None:
    cut = without_figures("bf16", "autocast", "cut short", "it had not ended after 40 s")
    untried = without_figures("compile", "default", "not tried", "the budget is too short for it")
    text = render_ladder(a_ladder(rungs=(cut, untried)), "hotlap.toml")
    heading = "  not tried to the end, the budget is too short for them:\n"
    assert f"{heading}    bf16=autocast, compile=default\n" in text
    assert "not kept" not in text
    hung = replace(cut, state="hung")
    assert "bf16=autocast                hung: it had" in render_ladder(
        a_ladder(rungs=(hung, untried)), "hotlap.toml"
    )
    # There was time later, or for another pair with it.
    assert heading not in render_ladder(a_ladder(rungs=(cut, rung(True))), "hotlap.toml")


def test_a_value_with_a_hyphen_stays_on_one_line() -> None:
    values = [f"{letter * n}-autotune" for letter in "ab" for n in range(1, 40)]
    rungs = [without_figures("compile", value, "not tried", "no time") for value in values]
    text = render_ladder(a_ladder(rungs=tuple(rungs)), "hotlap.toml")
    assert [value for value in values if f"compile={value}" not in text] == []


def test_a_rung_without_figures_lines_up_with_the_others() -> None:
    cut = without_figures("bf16", "autocast", "cut short", "it had not ended after 40 s")
    measured = rung(False, reason="inside the noise")
    line, above = render_rung(cut), render_rung(measured)
    assert line.index("bf16") == above.index("bf16")
    assert line.index("cut short") == above.index("not kept")
    assert " ".join(line.split()) == "bf16=autocast cut short it had not ended after 40 s"


@pytest.mark.parametrize(
    ("objective", "kept"),
    [
        ("time", "kept, and what the step loses without it:"),
        ("memory", "kept, and what memory grows by without it:"),
        ("energy", "kept, and what the energy of a sample grows by without it:"),
    ],
)
def test_what_is_lost_without_a_lever_is_told_in_what_was_to_be_bettered(
    objective: str, kept: str
) -> None:
    ladder = a_ladder(objective=objective, rungs=(replace(rung(True), contribution=1.5),))
    assert kept in render_ladder(ladder, "hotlap.toml")


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, "(60 s)"),
        ({"status": "interrupted"}, "(60 s, interrupted)"),
        ({"status": "out of budget"}, "(60 s, the budget is too short for all of it)"),
        (
            {"status": "out of budget", "budget_s": 120.0, "further_try_s": 90.0},
            "(60 s; 60 s of the budget are left, and a further try with its proof takes about "
            "90 s)",
        ),
        (
            {"status": "out of budget", "budget_s": 60.0, "further_try_s": 90.0},
            "(60 s; the budget is used up, and a further try with its proof takes about 90 s)",
        ),
    ],
)
def test_a_climb_says_why_it_took_no_longer(fields: dict[str, Any], ending: str) -> None:
    assert ending in render_ladder(a_ladder(**fields), "hotlap.toml")


def test_a_baseline_that_was_another_at_first_is_told() -> None:
    ladder = a_ladder(first_baseline=Rate(120.0, 119.0, 121.0, 4.0 * 2**30, 0.5))
    again = "the baseline was measured again later; at first it was"
    assert f"{again} 120 samples/s" in render_ladder(ladder, "hotlap.toml")
    assert again not in render_ladder(replace(ladder, objective="memory"), "hotlap.toml")
    assert again not in render_ladder(a_ladder(), "hotlap.toml")


def two_trials() -> list[Trial]:
    """Of the same command; the second is three times as fast."""
    first = World({}).make({}, 0, 32, 12, 60.0)
    phases = {"forward": 0.02, "backward": 0.02}
    return [first, replace(first, phases_s=phases, step_s=(0.04,) * 32)]


def test_the_step_of_the_baseline_is_the_one_its_rate_is_of() -> None:
    *_, head, line, step = render_baseline(two_trials(), Rate(320.0, 300.0, 340.0), "time").split(
        "\n"
    )
    assert line.split() == ["baseline", "320", "[300,", "340]", "1.00x", "ok"]
    assert step.strip() == "step 50 ms: forward 45%, backward 55%"  # 16 samples
    assert "samples/s" in head
    unknown = [replace(trial, samples_per_step=None) for trial in two_trials()]
    text = render_baseline(unknown, Rate(20.0, 19.0, 21.0), "time")
    assert " steps/s" in text
    assert "step 50 ms" in text


@pytest.mark.parametrize(
    ("objective", "ratio"),
    [
        ("time", "times faster than the baseline"),
        ("memory", "times smaller than the baseline"),
        ("energy", "times more samples a joule than the baseline"),
    ],
)
def test_the_ladder_says_what_its_ratio_is_of(objective: str, ratio: str) -> None:
    assert ratio in render_baseline(two_trials(), Rate(320.0, 300.0, 340.0), objective)


def test_energy_has_a_column_only_where_the_machine_tells_it() -> None:
    trials = two_trials()
    with_it = render_baseline(trials, Rate(320.0, 300.0, 340.0, None, 0.25), "time")
    without_it = render_baseline(trials, Rate(320.0, 300.0, 340.0), "time")
    assert "J/sample" in with_it
    assert "J/sample" not in without_it
    for text, has_energy in ((with_it, True), (without_it, False)):
        head = text.splitlines()[2]
        line = render_rung(rung(False), has_energy=has_energy)
        assert head.index("state") == line.index("not kept")


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.01234, 0.01345), (528.44, 5632.0), (14000.8, 16250.3), (140008.0, 162503.0), (2e6, 3.4e7)],
)
def test_an_interval_fits_its_column(low: float, high: float) -> None:
    wide = replace(rung(False), low=low, high=high)
    assert render_rung(wide).index("not kept") == render_rung(rung(False)).index("not kept")


@pytest.mark.parametrize(
    ("budget_s", "minutes"), [(60.0, "1 minute)"), (90.0, "1.5 minutes)"), (900.0, "15 minutes)")]
)
def test_one_minute_is_no_minutes(budget_s: float, minutes: str) -> None:
    assert render_title(("x.py",), budget_s) == f"hotlap tune: x.py (up to {minutes}"


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
