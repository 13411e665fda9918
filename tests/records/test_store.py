"""The folder of Runs: no collisions, and nothing that grows slower with the Runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from making import make_rank, make_table, merged

from hotlap.errors import RecordError, UsageError
from hotlap.records import Run, RunStore

N_PROCESSES = 16
FOLDERS_EACH = 20
MAKE_FOLDERS = f"""
import sys
from pathlib import Path
from hotlap.records import RunStore
sys.stdin.readline()
for _ in range({FOLDERS_EACH}):
    print(RunStore(Path(sys.argv[1])).new_folder().name)
"""


def add_run(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    merged([make_rank(make_table([{"forward": 10}] * 3))]).write(folder)
    return folder


def test_processes_that_start_together_get_folders_of_their_own(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE_FOLDERS, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(N_PROCESSES)
    ]
    for process in processes:  # all are waiting by now, or soon: let them go
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    names = [name for process in processes for name in process.communicate()[0].split()]
    assert [process.returncode for process in processes] == [0] * N_PROCESSES
    assert len(names) == N_PROCESSES * FOLDERS_EACH
    assert len(set(names)) == len(names)
    assert {path.name for path in root.iterdir()} == {*names, ".gitignore"}


def test_a_taken_name_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr("secrets.token_hex", lambda n: next(tokens))
    monkeypatch.setattr("hotlap.records.store.datetime", _StoppedClock)
    store = RunStore(tmp_path)
    assert store.new_folder().name == "20260101-000000-aaaaaa"
    assert store.new_folder().name == "20260101-000000-bbbbbb"


class _StoppedClock:
    @staticmethod
    def now(zone: Any) -> _StoppedClock:
        return _StoppedClock()

    def strftime(self, form: str) -> str:
        return "20260101-000000"


def test_a_new_folder_is_made_without_a_look_at_a_thousand_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(1000):
        (tmp_path / f"20250101-000000-{i:06x}").mkdir()
        (tmp_path / f"20250101-000000-{i:06x}" / "run.json").write_text("{}")
    looks: list[str] = []

    def counted(name: str, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            looks.append(name)
            return original(*arguments, **options)

        return call

    for name in ("scandir", "listdir", "walk"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    store = RunStore(tmp_path)
    assert store.new_folder().is_dir()
    assert looks == []
    assert len(list(store.folders())) == 1000
    assert looks != [], "the count would have seen it"


def test_runs_keep_themselves_out_of_git(tmp_path: Path) -> None:
    RunStore(tmp_path / "a" / "runs").new_folder()
    assert (tmp_path / "a" / "runs" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--runs-dir"):
        RunStore(tmp_path / "file" / "runs").new_folder()


def test_a_run_is_found_by_its_id_an_end_of_it_its_folder_and_last(tmp_path: Path) -> None:
    first, second = (add_run(tmp_path / "runs", f"20260101-00000{i}-abcde{i}") for i in (1, 2))
    store = RunStore(tmp_path / "runs")
    assert store.find(first.name) == first
    assert store.find("abcde2") == second
    assert store.find("20260101-000001") == first
    assert store.find(str(first)) == first
    assert store.find(str(first / "run.json")) == first
    assert store.find("last") == second


@pytest.mark.parametrize(
    ("name", "words"), [("20260101", "2 Runs"), ("zzz", "no Run"), ("", "no Run")]
)
def test_a_name_that_is_not_one_run_is_refused(tmp_path: Path, name: str, words: str) -> None:
    for i in (1, 2):
        add_run(tmp_path, f"20260101-00000{i}-abcde{i}")
    with pytest.raises(UsageError, match=words):
        RunStore(tmp_path).find(name)


def test_all_runs_are_read_and_damaged_ones_say_so(tmp_path: Path) -> None:
    add_run(tmp_path, "1-good")
    (tmp_path / "2-bad").mkdir()
    (tmp_path / "2-bad" / "run.json").write_text("{")
    (tmp_path / "3-under-way").mkdir()
    (tmp_path / "a-file").touch()
    read = {folder.name: type(run) for folder, run in RunStore(tmp_path).read_all()}
    assert read == {"1-good": Run, "2-bad": RecordError}
    assert [folder.name for folder, _ in RunStore(tmp_path).read_all(last=1)] == ["2-bad"]
