"""Ask a program of `children/` in a process of its own, and keep what it told if it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "\x1e"
"""Begins each answer; libraries may print what they like between them."""

# A module of the user's that lies in the working folder must not stand in for another one, and
# hotlap is this very one: its folder is in front while the package is found, and not longer.
_START = (
    "import sys\n"
    "if sys.path[:1] == ['']: del sys.path[0]\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "import hotlap\n"
    "del sys.path[0]\n"
    "import importlib\n"
    "importlib.import_module(sys.argv[2]).main(sys.argv[3:])\n"
)
_HOME = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True)
class Answer:
    """All that a child told, and how it ended."""

    told: tuple[Any, ...]
    trouble: str
    """Why it did not come to its end, in a few words; empty where it did."""


def tell(value: Any) -> None:
    """In the child: hand over one JSON value, at once."""
    print(MARK + json.dumps(value), flush=True)


def ask(
    program: str,
    arguments: Sequence[str] = (),
    timeout_s: float = 60.0,
    environ: Mapping[str, str] = os.environ,
) -> Answer:
    """Run a program of `children/` to its end, its death or its time."""
    module = f"hotlap.machine.children.{program}"
    words = [sys.executable, "-c", _START, _HOME, module, *arguments]
    out, _, trouble = run_to_end(words, timeout_s, environ)
    return Answer(tuple(_answers(out)), trouble)


def run_to_end(
    words: Sequence[str], timeout_s: float, environ: Mapping[str, str]
) -> tuple[str, str, str]:
    """What a program printed, on stdout and on stderr, and why it did not come to its end.

    It gets no input, and what it started itself ends with it.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        return "", "", f"it could not be started: {error.strerror}"
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()
        return out, err, f"no end after {timeout_s:.0f} s"
    except BaseException:
        _end(process)
        raise
    return out, err, _trouble(process.returncode, err)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _answers(out: str) -> list[Any]:
    answers = []
    for line in out.split("\n"):
        _, mark, text = line.partition(MARK)  # behind what a library has left without an end
        if mark:
            try:
                answers.append(json.loads(text))
            except ValueError:  # cut off by the death of the process
                continue
    return answers


def _trouble(code: int, err: str) -> str:
    if code < 0:
        return f"it ended with {signal_name(-code)}"
    if code:
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"it ended with exit code {code}"
    return ""


def signal_name(number: int) -> str:
    """'SIGILL' for 4."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
