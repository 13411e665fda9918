"""Programs in processes of their own: what they told is kept, however they end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from hotlap.machine import child
from hotlap.machine.child import ask
from hotlap.machine.children import instructions

TELLING = """
import os, signal, sys, time
from hotlap.machine.child import tell

def main(argv):
    print("a library says hello", end="")
    tell({"first": 1})
    if argv[0] == "dies":
        tell({"second": 2})
        os.kill(os.getpid(), signal.SIGILL)
    if argv[0] == "hangs":
        os.system("sleep 600 & echo $! > " + argv[1])
        time.sleep(600)
    if argv[0] == "raises":
        raise ValueError("something is wrong")
    tell({"last": 3})
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program beside those of the package, found through the package's own path."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "telling.py").write_text(TELLING)
    (folder / "sitecustomize.py").write_text(
        f"import hotlap.machine.children as c; c.__path__.append({str(folder)!r})"
    )
    home = str(Path(child.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), home)))
    return "telling"


def test_what_a_program_tells_is_kept_and_what_libraries_print_is_not(program: str) -> None:
    answer = ask(program, ["ends"], environ=os.environ)
    assert answer.told == ({"first": 1}, {"last": 3})
    assert answer.trouble == ""


def test_a_program_that_dies_has_told_what_it_told_before(program: str) -> None:
    answer = ask(program, ["dies"], environ=os.environ)
    assert answer.told == ({"first": 1}, {"second": 2})
    assert answer.trouble == "it ended with SIGILL"


def test_a_program_that_raises_is_a_line(program: str) -> None:
    answer = ask(program, ["raises"], environ=os.environ)
    assert answer.told == ({"first": 1},)
    assert answer.trouble == "ValueError: something is wrong"


@pytest.mark.timeout(60)
def test_a_program_that_hangs_is_ended_with_its_own_children(program: str, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    answer = ask(program, ["hangs", str(pid_file)], timeout_s=8, environ=os.environ)
    assert answer.told == ({"first": 1},)
    assert answer.trouble == "no end after 8 s"
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while _runs(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(grandchild)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_file_in_the_working_folder_stands_in_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "re", "torch", "hotlap", "mmap"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    answer = ask("instructions", ["avx2"])
    assert answer.trouble == ""
    assert [one["name"] for one in answer.told] == ["avx2"]


def test_a_python_that_cannot_be_started_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert ask("instructions", ["avx2"]).trouble.startswith("it could not be started")


def test_an_instruction_that_the_cpu_lacks_is_found_by_running_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(instructions.CODE, "refused by every x86", "0f0b c3")  # ud2
    monkeypatch.setitem(instructions.CODE, "known to every x86", "c3")  # ret
    names = ("refused by every x86", "known to every x86", "of another age")
    states = [instructions._try(name) for name in names]
    is_x86 = os.uname().machine == "x86_64"
    assert states == (["dies", "usable", "unknown"] if is_x86 else ["unknown"] * 3)
