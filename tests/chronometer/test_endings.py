"""However a training ends, its exit code is its own and the Run holds what was measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import (
    SCRIPTS,
    Command,
    Result,
    RunCache,
    collect,
    environment,
    gone,
    hotlap_words,
    run_hotlap,
    wait_for,
)


def cut(*words: str) -> Command:
    return Command(words, options=("--quiet", "--steps", "5"))


CUT = {
    "thread-that-never-ends": cut("thread_stays.py"),  # the slowest: it starts first
    "plain": cut("plain.py"),
    "workers": cut("loader.py", "--workers", "2"),
    "lightning": cut("lightning_fit.py"),
    "hf": cut("hf_trainer.py"),
    "torchrun": cut("torchrun", "--standalone", "--nproc_per_node", "2", "ddp.py"),
    "ddp-spawn": cut("ddp_spawn.py"),
}
BARE_EXCEPT = cut("fails.py", "--how", "mute")


@pytest.mark.parametrize("command", CUT.values(), ids=list(CUT))
def test_a_cut_run_ends_with_code_0_after_the_steps_asked_for(
    runs: RunCache, command: Command
) -> None:
    result = runs(command)
    assert (result.code, result.run["status"], result.run["exit_code"]) == (0, "cut", 0)
    assert result.run["steps"]["measured"] == 5
    assert len(result.run["loss"]) == result.n_steps
    assert result.run["total_s"] < 60


@pytest.mark.parametrize("command", [BARE_EXCEPT])
def test_a_script_that_swallows_the_exit_is_cut_all_the_same(
    runs: RunCache, command: Command
) -> None:
    result = runs(command)
    assert (result.code, result.run["status"], result.run["exit_code"]) == (0, "cut", 0)
    assert b"a step failed, going on" in result.stdout
    # It is ended at the first chance after that, the end of the next step.
    assert 5 <= result.run["steps"]["measured"] <= 6


def fails(how: str) -> Command:
    return Command(("fails.py", "--how", how))


ENDINGS = {
    "raise": (fails("raise"), 1, "failed"),
    "exit3": (fails("exit3"), 3, "failed"),
    "sigint": (fails("sigint"), -signal.SIGINT, "killed"),
    "sigterm": (fails("sigterm"), -signal.SIGTERM, "killed"),
    "sigkill": (fails("sigkill"), -signal.SIGKILL, "killed"),
    "segv": (fails("segv"), -signal.SIGSEGV, "failed"),
    "oom": (fails("oom"), 1, "oom"),
    "mute": (fails("mute"), 0, "ok"),
}
every_ending = pytest.mark.parametrize(
    ("command", "code", "status"), ENDINGS.values(), ids=list(ENDINGS)
)


@every_ending
def test_the_exit_code_is_the_scripts_own_and_the_status_says_why(
    runs: RunCache, command: Command, code: int, status: str
) -> None:
    result = runs(command)
    assert (result.code, result.run["exit_code"], result.run["status"]) == (code, code, status)


@every_ending
def test_the_run_holds_every_step_that_was_made(
    runs: RunCache, command: Command, code: int, status: str
) -> None:
    result = runs(command)
    printed = result.printed_losses()
    assert len(printed) == (200 if "mute" in command.words else 10)
    assert result.run["loss"] == printed
    assert result.n_steps == len(printed)


class Training:
    """`hotlap time until.py` under way, in a process group of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self._stop = folder, folder / "stop"
        self.process = subprocess.Popen(
            hotlap_words(folder, ["until.py", "--file", str(self._stop), *words], ["--quiet"]),
            cwd=SCRIPTS,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Training:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # after a test that failed
            os.killpg(self.process.pid, signal.SIGKILL)

    def command_pid(self) -> int:
        """The process that trains."""
        (tape,) = (self.folder / "runs").glob("*/*.tape")
        return int(tape.stem.rpartition("-")[2])

    def finish(self, stop: bool = True) -> Result:
        """Let the training end, and wait for that."""
        if stop:
            self._stop.touch()
        stdout, stderr = self.process.communicate(timeout=60)
        done = subprocess.CompletedProcess([], self.process.returncode, stdout, stderr)
        return collect(self.folder, done)


def to_hotlap_alone(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)


def to_the_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    os.killpg(process.pid, number)


Send = Callable[["subprocess.Popen[bytes]", signal.Signals], None]


@pytest.mark.parametrize("send", [to_hotlap_alone, to_the_group])
def test_signals_reach_the_command_exactly_once(tmp_path: Path, send: Send) -> None:
    caught = [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP]
    with Training(tmp_path, "--catch", *(number.name for number in caught)) as training:
        for number in caught:
            send(training.process, number)
            time.sleep(0.3)
        result = training.finish()
    assert result.truth["signals"] == {number.name: 1 for number in caught}
    assert (result.code, result.run["status"]) == (0, "ok")
    assert result.n_steps == result.truth["steps"]


@pytest.mark.parametrize(
    ("send", "number"),
    [(to_hotlap_alone, signal.SIGTERM), (to_the_group, signal.SIGINT)],
    ids=["terminated", "interrupted"],
)
def test_a_signal_to_hotlap_ends_the_command_as_without(
    tmp_path: Path, send: Send, number: signal.Signals
) -> None:
    with Training(tmp_path) as training:
        send(training.process, number)
        result = training.finish(stop=False)
    assert (result.code, result.run["status"], result.run["exit_code"]) == (
        -number,
        "killed",
        -number,
    )
    assert result.n_steps >= 5


def test_killing_hotlap_ends_the_command_and_still_leaves_a_run(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        pid = training.command_pid()
        training.process.kill()
        assert wait_for(lambda: gone(pid), 5)
        assert wait_for(lambda: any((tmp_path / "runs").glob("*/run.json")), 10)
        training.process.wait(timeout=10)
    (path,) = (tmp_path / "runs").glob("*/run.json")
    run = json.loads(path.read_bytes())
    assert (run["status"], run["exit_code"]) == ("killed", -signal.SIGKILL)
    assert run["steps"]["measured"] >= 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_the_measuring_and_not_the_training(
    small_disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").symlink_to(small_disk)
    result = run_hotlap("fills_disk.py", "--file", str(small_disk / "filling"), folder=tmp_path)
    printed = result.printed_losses()
    assert (result.code, len(printed)) == (5, 9000)
    assert b"Traceback" not in result.stderr
    kept = json.loads((result.folder / "run.json").read_bytes())
    assert kept == result.run
    assert (kept["status"], kept["exit_code"]) == ("failed", 5)
    assert any("measuring stopped" in note for note in kept["notes"])
    assert result.n_steps > 1000
    assert kept["loss"] == printed[: result.n_steps]


@pytest.mark.parametrize("command", [Command(("odd_batches.py",), options=())])
def test_a_hook_that_breaks_is_noted_and_the_training_goes_on(
    runs: RunCache, command: Command
) -> None:
    result = runs(command)
    assert (result.code, result.run["status"]) == (0, "ok")
    assert result.n_steps == result.truth["steps"]
    assert result.run["loss"] == result.printed_losses()
    assert result.run["samples_per_s"] is None
    assert any("planted in values()" in note for note in result.run["notes"])
    report = result.stderr.decode()
    assert report.lstrip("\n").startswith(f"hotlap: {result.run['verdict']}\n")
    assert all(note in report for note in result.run["notes"])
    assert result.run["id"] in report
