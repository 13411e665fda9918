"""A command does the same with `hotlap time --quiet` as without: bytes, exit code, surroundings.

What differs between two runs without hotlap (the name of a temporary folder) is masked; that it
does is shown by running the command a second time without.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from running import SCRIPTS, Command, Result, RunCache, run_alone

MASKS = (
    (rb"(?m)^cwd tmp\w+$", b"cwd TEMPORARY"),  # awkward.py
)


def masked(text: bytes) -> bytes:
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def both_ways(*words: str, stdin: bytes = b"") -> tuple[Command, Command]:
    """Without hotlap, and with it."""
    return Command(words, stdin=stdin, is_alone=True), Command(words, stdin=stdin)


COMPARED = {
    "plain": both_ways("plain.py"),
    "workers": both_ways("loader.py", "--workers", "2"),
    "validate": both_ways("validate.py"),
    "raises": both_ways("fails.py", "--how", "raise"),
    "exits-3": both_ways("fails.py", "--how", "exit3"),
    "stdin-cwd-relative-import": both_ways("awkward.py", stdin=b"first\nsecond\n"),
    "lightning": both_ways("lightning_fit.py"),
    "raises-in-forward-backward-loader-optimizer": both_ways("raises.py"),
    "pickles-main-classes-for-spawned-workers": both_ways("pickles.py"),
    "surroundings-after-training": both_ways("surroundings.py", "torch"),
}


@pytest.mark.parametrize("commands", COMPARED.values(), ids=list(COMPARED))
def test_stdout_stderr_and_exit_code_are_the_same(
    runs: RunCache, commands: tuple[Command, Command]
) -> None:
    alone, measured = (runs(command) for command in commands)
    assert measured.run, "it was not measured"
    assert alone.code == measured.code
    for name in ("stdout", "stderr"):
        expected = getattr(alone, name)
        assert masked(getattr(measured, name)) == masked(expected)
        if masked(expected) != expected:
            again = getattr(runs(replace(commands[0], n=2)), name)
            assert again != expected, "masked is more than what differs without hotlap"
            assert masked(again) == masked(expected)


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
    own = "import sys\nOWNER = 'site'\nsys.site_was_here = list(sys.path)\n"
    (site / "sitecustomize.py").write_text(own)
    env = {"PYTHONPATH": str(site)}
    alone = run_alone("surroundings.py", env=env)
    measured = hotlap_time("surroundings.py", env=env, options=["--quiet"])
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
    assert (measured.code, measured.stdout) == (alone.code, alone.stdout)
    assert measured.stderr == 2 * alone.stderr  # hotlap's own Python has the same site


def test_losses_of_steps_after_an_error_that_was_caught_are_their_own(runs: RunCache) -> None:
    result = runs(Command(("raises.py",)))
    assert result.run["loss"] == result.printed_losses()
