"""Wrong use gets one clear sentence and exit code 2; a command without training keeps its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import SCRIPTS, Command, Result, RunCache, environment


def hotlap(*words: str, cwd: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotlap", *words],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One line that names what was wrong."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("hotlap: ")
    for part in parts:
        assert part in done.stderr


WRONG_WORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no command to time": (("time",), ("no command", "train.py")),
    "nothing after the dashes": (("time", "--"), ("no command",)),
    "no such script": (("time", "nope.py"), ("nope.py", "does not exist")),
    "no such script for python": (("time", "python", "nope.py"), ("nope.py", "does not exist")),
    "no such program": (("time", "nope"), ("nope", "not found")),
    "a folder for a program": (("time", "./pkg"), ("./pkg", "not found")),
    "zero steps": (("time", "--steps", "0", "plain.py"), ("--steps", "'0'")),
    "steps in letters": (("time", "--steps", "abc", "plain.py"), ("--steps", "'abc'")),
    "negative warm-up": (("time", "--warmup", "-1", "plain.py"), ("--warmup",)),
    "an option without its value": (("time", "--steps"), ("--steps",)),
    "an unknown option": (("time", "--fast", "plain.py"), ("--fast",)),
    "an unknown command": (("tim", "plain.py"), ("'tim'", "time")),
    "an unknown option of hotlap": (("--fast",), ("'--fast'",)),
    "result into a missing folder": (
        ("time", "--json", "missing/run.json", "plain.py"),
        ("--json", "missing/run.json"),
    ),
    "result into a folder": (("time", "--json", ".", "plain.py"), ("--json", "folder")),
    "one Run to compare": (("compare", "last"), ("B",)),
    "too many Runs to compare": (("compare", "a", "b", "c"), ("c",)),
    "the last zero Runs": (("runs", "--last", "0"), ("--last", "'0'")),
}


@pytest.mark.parametrize(("words", "parts"), WRONG_WORDS.values(), ids=list(WRONG_WORDS))
def test_a_wrong_command_line_is_one_sentence(
    words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    assert_one_sentence(hotlap(*words), *parts)
    assert not (SCRIPTS / "missing").exists()


def test_an_unwritable_folder_is_found_before_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    started = tmp_path / "started"
    runs_dir = str(tmp_path / "file" / "runs")
    done = hotlap("time", "--runs-dir", runs_dir, "touch", str(started))
    assert_one_sentence(done, runs_dir, "--runs-dir")
    assert not started.exists()


@pytest.fixture
def store(runs: RunCache, tmp_path: Path) -> Path:
    """A folder with a good Run, `good-1`."""
    good = runs(Command(("plain.py",)))
    shutil.copytree(good.folder, tmp_path / "runs" / "good-1")
    return tmp_path / "runs"


def compare(store: Path, a: str, b: str, *options: str) -> subprocess.CompletedProcess[str]:
    return hotlap("compare", "--runs-dir", str(store), *options, a, b)


def spoil(store: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """A copy of the good Run with a change in its `run.json`."""
    shutil.copytree(store / "good-1", store / name)
    path = store / name / "run.json"
    run = json.loads(path.read_text())
    change(run)
    path.write_text(json.dumps(run))


def test_a_run_compares_with_itself(store: Path, tmp_path: Path) -> None:
    done = compare(store, "good-1", "last", "--json", str(tmp_path / "comparison.json"))
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((tmp_path / "comparison.json").read_text())
    assert result["ratio"]["value"] == 1.0
    assert result["outside_noise"] is False


def test_comparing_with_an_unknown_run_says_so(store: Path) -> None:
    assert_one_sentence(compare(store, "good-1", "bad"), "'bad'", "hotlap runs")


def test_comparing_in_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    assert_one_sentence(compare(tmp_path / "none", "last", "last"), "'last'")


def test_an_id_that_names_two_runs_is_refused(store: Path) -> None:
    spoil(store, "good-2", lambda run: None)
    assert_one_sentence(compare(store, "good-1", "good"), "'good'", "2 Runs")


def test_a_truncated_run_is_called_damaged(store: Path) -> None:
    spoil(store, "bad", lambda run: None)
    path = store / "bad" / "run.json"
    path.write_bytes(path.read_bytes()[:200])
    assert_one_sentence(compare(store, "good-1", "bad"), str(path), "damaged")


def test_a_run_of_a_newer_schema_is_refused(store: Path) -> None:
    spoil(store, "bad", lambda run: run.update(schema=99))
    assert_one_sentence(compare(store, "bad", "good-1"), "99", "newer")


def test_a_wrong_type_names_its_key(store: Path) -> None:
    spoil(store, "bad", lambda run: run["step_s"].update(mean="fast"))
    assert_one_sentence(compare(store, "good-1", "bad"), "step_s.mean", "'fast'", "number")


def test_a_run_without_steps_cannot_be_compared(store: Path) -> None:
    spoil(store, "bad", lambda run: run.update(step_s=None))
    assert_one_sentence(compare(store, "good-1", "bad"), "no measured steps")


def test_a_run_that_lost_its_rank_files_cannot_be_compared(store: Path) -> None:
    spoil(store, "bad", lambda run: None)
    for path in (store / "bad").glob("rank-*.json"):
        path.unlink()
    assert_one_sentence(compare(store, "good-1", "bad"), "rank files")


def test_fewer_steps_in_a_rank_file_than_in_its_run_are_one_sentence(store: Path) -> None:
    spoil(store, "bad", lambda run: run["steps"].update(measured=1000))
    assert_one_sentence(compare(store, "good-1", "bad"), "bad")


def test_a_comparison_into_a_missing_folder_is_refused(store: Path) -> None:
    done = compare(store, "good-1", "good-1", "--json", str(store / "missing" / "x.json"))
    assert_one_sentence(done, "--json", "missing")


def test_damaged_runs_are_listed_as_such_beside_the_good_ones(store: Path) -> None:
    spoil(store, "bad", lambda run: run.update(schema=99))
    done = hotlap("runs", "--runs-dir", str(store))
    assert (done.returncode, done.stderr) == (0, "")
    bad, good = done.stdout.splitlines()[1:]
    assert "damaged" in bad
    assert "plain.py" in good


def test_levers_tell_two_runs_of_a_command_apart(store: Path) -> None:
    many = {f"lever_{i}": "on" for i in range(30)}
    spoil(store, "good-2", lambda run: run.update(levers={"threads": "1"}))
    spoil(store, "good-3", lambda run: run.update(levers=many))
    plain, one, several = hotlap("runs", "--runs-dir", str(store)).stdout.splitlines()[1:]
    assert plain.endswith("  plain.py")
    assert one.endswith("  plain.py  with threads=1")
    assert several.endswith("…")
    assert len(several) < 160
    compared = compare(store, "good-1", "good-2").stdout.splitlines()
    assert compared[0].endswith("  plain.py")
    assert compared[1].endswith("  plain.py  with threads=1")
    assert "  note: not the same levers" in compared


# Commands without training: words, exit code, what hotlap says that it saw.
WITHOUT_TRAINING = {
    "inference": (("no_training.py",), 7, "module calls: 1"),
    "python without torch": (("python", "-c", "print(1)"), 0, "torch was never imported"),
    "python -S": (("python", "-S", "-c", "print(1)"), 0, "-S"),
    "python -I": (("python", "-I", "-c", "print(1)"), 0, "-I"),
    "a program": (("true",), 0, "no Python"),
    "a program that fails": (("false",), 1, "no Python"),
}


@pytest.mark.parametrize(
    ("words", "code", "seen"), WITHOUT_TRAINING.values(), ids=list(WITHOUT_TRAINING)
)
def test_a_command_without_training_keeps_its_exit_code(
    hotlap_time: Callable[..., Result], words: tuple[str, ...], code: int, seen: str
) -> None:
    result = hotlap_time(*words)
    assert result.code == code
    assert (result.run["exit_code"], result.run["steps"]["measured"]) == (code, 0)
    assert result.run["step_s"] is None
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("hotlap: no training step was measured")
    assert seen in lines[0]


@pytest.mark.parametrize("options", [("--warmup", "99999"), ("--warmup", "40")], ids=" ".join)
def test_steps_that_are_all_warm_up_are_told_as_such(
    hotlap_time: Callable[..., Result], options: tuple[str, str]
) -> None:
    result = hotlap_time("plain.py", options=options)
    assert result.code == 0
    assert result.run["steps"] == {"measured": 0, "warmup": 40}
    assert result.stderr.decode().splitlines()[0] == (
        "hotlap: no training step was measured: it made 40 steps, all within the warm-up "
        f"({' '.join(options)})"
    )


def test_quiet_prints_nothing_of_hotlaps_own(hotlap_time: Callable[..., Result]) -> None:
    result = hotlap_time("python", "-c", "print(1)", options=["--quiet"])
    assert (result.code, result.stdout, result.stderr) == (0, b"1\n", b"")
