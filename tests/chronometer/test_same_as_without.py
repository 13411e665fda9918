"""A command does the same with `hotlap time --quiet` as without: bytes, exit code, surroundings.

What differs between two runs without hotlap (process ids, addresses, times of day) is masked; that
nothing else does is shown by running the command twice without.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from running import SCRIPTS, Command, Result, RunCache, run_alone

MASKS = (
    (rb"\b0x[0-9a-f]{6,}\b(?!p)", b"ADDRESS"),  # not the hexadecimal digits of a loss
    (rb"[WIE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ", b"TIME PID "),  # torch's log lines
    (rb"\bpid[ =:]+\d+", b"PID"),
)


def masked(text: bytes) -> bytes:
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def three_runs(*words: str, stdin: bytes = b"") -> tuple[Command, Command, Command]:
    """Without hotlap, without it again, with it."""
    alone = Command(words, stdin=stdin, is_alone=True)
    return alone, replace(alone, n=2), Command(words, stdin=stdin)


COMPARED = {
    "plain": three_runs("plain.py"),
    "workers": three_runs("loader.py", "--workers", "2"),
    "validate": three_runs("validate.py"),
    "raises": three_runs("fails.py", "--how", "raise"),
    "exits-3": three_runs("fails.py", "--how", "exit3"),
    "stdin-cwd-relative-import": three_runs("awkward.py", stdin=b"first\nsecond\n"),
    "lightning": three_runs("lightning_fit.py"),
    "raises-in-forward-backward-loader-optimizer": three_runs("raises.py"),
    "pickles-main-classes-for-spawned-workers": three_runs("pickles.py"),
    "surroundings-after-training": three_runs("surroundings.py", "torch"),
    "compiled-step": three_runs("compiled_model.py", "--style", "step"),
}


@pytest.mark.parametrize("commands", COMPARED.values(), ids=list(COMPARED))
def test_stdout_stderr_and_exit_code_are_the_same(
    runs: RunCache, commands: tuple[Command, Command, Command]
) -> None:
    alone, again, measured = (runs(command) for command in commands)
    assert measured.run, "it was measured"
    for name in ("stdout", "stderr"):
        expected = masked(getattr(alone, name))
        assert masked(getattr(again, name)) == expected, "two runs without hotlap differ"
        assert masked(getattr(measured, name)) == expected
    assert alone.code == again.code == measured.code


# How `python` can be told to run a program.
STARTS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "script": (("surroundings.py", "--lr", "0.1", "--", "-x"), b""),
    "python-script": (("python", "-u", "-X", "utf8", "surroundings.py", "a b"), b""),
    "module": (("python", "-m", "surroundings", "word"), b""),
    "command": (("python", "-c", "import surroundings", "word"), b""),
    "stdin": (("python", "-"), (SCRIPTS / "surroundings.py").read_bytes()),
    "safe-path": (("python", "-P", "surroundings.py"), b""),
}


@pytest.mark.parametrize(("words", "stdin"), STARTS.values(), ids=list(STARTS))
def test_a_script_sees_the_same_surroundings(
    hotlap_time: Callable[..., Result], words: tuple[str, ...], stdin: bytes
) -> None:
    alone = run_alone(*words, stdin=stdin)
    measured = hotlap_time(*words, stdin=stdin, options=["--quiet"])
    assert alone.code == measured.code == 0
    assert (measured.stdout, measured.stderr) == (alone.stdout, alone.stderr)


def test_a_sitecustomize_of_the_sites_own_still_runs(
    hotlap_time: Callable[..., Result], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    own = "import sys\nOWNER = 'site'\nsys.site_was_here = sys.path[:2]\nprint('site runs')\n"
    (site / "sitecustomize.py").write_text(own)
    env = {"PYTHONPATH": str(site)}
    alone = run_alone("surroundings.py", env=env)
    measured = hotlap_time("surroundings.py", env=env, options=["--quiet"])
    assert alone.stdout.startswith(b"site runs")
    assert b"sitecustomize site" in alone.stdout
    assert (measured.stdout, measured.stderr) == (alone.stdout, alone.stderr)


def test_an_error_in_the_sites_own_sitecustomize_is_shown_as_without(
    hotlap_time: Callable[..., Result], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("raise ValueError('broken site')\n")
    env = {"PYTHONPATH": str(site)}
    alone = run_alone("surroundings.py", env=env)
    measured = hotlap_time("surroundings.py", env=env, options=["--quiet"])
    assert b"broken site" in alone.stderr
    assert (measured.code, measured.stdout, measured.stderr) == (
        alone.code,
        alone.stdout,
        alone.stderr,
    )


def test_losses_of_steps_after_an_error_that_was_caught_are_their_own(runs: RunCache) -> None:
    result = runs(Command(("raises.py",)))
    assert result.run["loss"] == result.printed_losses()
