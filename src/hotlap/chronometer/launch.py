"""Start a command under the chronometer, wait for it, and make its Run.

The command gets this process's terminal, standard streams, working folder and process group; what
is added is in three environment variables. It is timed from here only as a whole.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from hotlap.chronometer import INJECT
from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.collect import collect_ranks, kernel_oom_kills, status_of
from hotlap.chronometer.guardian import Guardian
from hotlap.chronometer.merge import Ending, automatic_warmup, merge
from hotlap.chronometer.power import NVML_VARIABLE
from hotlap.chronometer.session import CUT_SUFFIX, Settings
from hotlap.chronometer.steps import seen_by
from hotlap.errors import UsageError
from hotlap.machine.host import describe_host
from hotlap.records.run import Run
from hotlap.records.store import RunStore
from hotlap.wording import n_of

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Of these, those that ask for the end."""
_SENT_BY_KERNEL = 0x80  # si_code of a signal from the terminal: the whole foreground group has it
CUT_GRACE_S = 30.0
"""How long a process that was asked to end after its steps may take to do so."""
POLL_S = 0.5
BALLAST_BYTES = 1 << 19
SILENCE = tuple((os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2))


@dataclass(frozen=True, slots=True)
class TimeRequest:
    """What is to be measured."""

    command: tuple[str, ...]
    runs_dir: Path
    steps: int | None = None
    warmup: int | None = None
    levers: dict[str, str] = field(default_factory=dict)
    """What the Run says it was made with; the environment brings them into the processes."""
    environment: dict[str, str] = field(default_factory=dict)
    """Set for the command, beside what it inherits."""
    is_silent: bool = False
    """Whether what the command prints is thrown away."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    run: Run
    folder: Path
    seen: dict[str, int]
    """What was seen of the command's processes, for one in which no step was found."""
    asked_by: int = 0
    """The signal by which the command was asked to end, by way of hotlap; 0 where it was not."""
    warmup: int | None = None
    """Steps that were to be left out; None where that depends on how many there are."""


def time_command(request: TimeRequest) -> Outcome:
    """Run a command to its end and return its Run, which is also on disk."""
    argv = resolve(request.command)
    folder = RunStore(request.runs_dir).new_folder().resolve()
    job = _Job(request, argv, folder)
    job.execute()
    return job.finish()


def resolve(command: Sequence[str]) -> list[str]:
    """The words to execute, after looking that they can be."""
    first = command[0]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise UsageError(f"the script {first} does not exist in {os.getcwd()}")
        return [sys.executable, *command]
    if shutil.which(first) is None:
        raise UsageError(
            f"the command {first} was not found; give a script (train.py) or a program on the PATH"
        )
    if Path(first).name.startswith("python"):
        _check_python_script(command)
    return list(command)


def _check_python_script(command: Sequence[str]) -> None:
    """`python train.py` with a script that is not there: say so here, before a Run is made."""
    script = command[1] if len(command) > 1 else ""
    if script.endswith(".py") and not Path(script).is_file():
        raise UsageError(f"the script {script} does not exist in {os.getcwd()}")


def child_environment(settings: Settings) -> dict[str, str]:
    """This environment, with the way to the hooks in front of PYTHONPATH."""
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{INJECT}{os.pathsep}{before}" if before else str(INJECT)
    environment[Settings.VARIABLE] = settings.to_environment()
    nvml = importlib.util.find_spec("pynvml")
    if nvml is not None and nvml.origin:
        environment[NVML_VARIABLE] = nvml.origin
    return environment


class _Job:
    """One execution: what is known of it while it goes on."""

    def __init__(self, request: TimeRequest, argv: list[str], folder: Path) -> None:
        self.request, self.argv, self.folder = request, argv, folder
        self.warmup = request.warmup
        if request.steps is not None and self.warmup is None:
            # The steps asked for are nine tenths of the run; its first tenth is the warm-up.
            self.warmup = automatic_warmup(request.steps * 10 // 9)
        total = None if request.steps is None else request.steps + (self.warmup or 0)
        self.settings = Settings(str(folder), total)
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.return_code: int | None = None
        self.ended_by_us = False
        self.asked_by = 0
        self.oom_kills = kernel_oom_kills()
        self.begin_ns = self.end_ns = now_ns()

    def execute(self) -> None:
        """Start the command and wait for its end."""
        self._put_ballast()
        waited_for = {*FORWARDED, signal.SIGCHLD}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
        try:
            self.begin_ns = now_ns()
            pid = self._spawn(mask)
            guardian = Guardian(FORWARDED, pid, self._finish_orphaned)
            try:
                self.return_code = self._wait(pid, guardian, waited_for)
            finally:
                guardian.dismiss()
        finally:
            self.end_ns = now_ns()
            _drop_pending(FORWARDED)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _spawn(self, mask: Iterable[int]) -> int:
        try:
            return os.posix_spawnp(
                self.argv[0],
                self.argv,
                child_environment(self.settings) | self.request.environment,
                file_actions=SILENCE if self.request.is_silent else (),
                setsigmask=mask,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # python ignores these two
            )
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise UsageError(f"{self.argv[0]} cannot be started: {error.strerror}") from None

    def _wait(self, pid: int, guardian: Guardian, signals: set[signal.Signals]) -> int:
        """Forward what is meant for the command until it ends."""
        cut_seen_ns = 0
        while True:
            received = signal.sigtimedwait(signals, POLL_S)
            if received is not None and received.si_signo in ENDING:
                self.asked_by = received.si_signo
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if received is not None and received.si_signo != signal.SIGCHLD:
                from_terminal = received.si_code == _SENT_BY_KERNEL
                if not from_terminal and not guardian.also_received(received.si_signo):
                    os.kill(pid, received.si_signo)
            if any(self.folder.glob(f"*{CUT_SUFFIX}")):
                cut_seen_ns = cut_seen_ns or now_ns()
                self._press_to_end(pid, (now_ns() - cut_seen_ns) / 1e9)

    def _press_to_end(self, pid: int, waited_s: float) -> None:
        """A thread of the script's can keep it alive after its main thread has ended."""
        if waited_s > CUT_GRACE_S:
            self.ended_by_us = True
            os.kill(pid, signal.SIGKILL if waited_s > CUT_GRACE_S + 10 else signal.SIGTERM)

    def _put_ballast(self) -> None:
        # Space for the result, held back from a training that fills the disk.
        with (self.folder / ".ballast").open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, BALLAST_BYTES)

    def _finish_orphaned(self) -> None:
        """What the guardian does when the launcher was killed."""
        self.return_code, self.end_ns = -signal.SIGKILL, now_ns()
        time.sleep(1.0)
        self.finish()

    def finish(self) -> Outcome:
        """Read what the ranks left, merge it and write the Run."""
        (self.folder / ".ballast").unlink(missing_ok=True)
        records, notes = collect_ranks(self.folder)
        status = status_of(self.return_code or 0, records, self.oom_kills)
        cut_short = status == "cut" and (self.ended_by_us or self.return_code != 0)
        run = merge(
            records,
            run_id=self.folder.name,
            command=self.request.command,
            started=self.started,
            machine=asdict(describe_host()),
            levers=self.request.levers,
            ending=Ending(
                status,
                0 if cut_short else self.return_code,
                (self.end_ns - self.begin_ns) / 1e9,
                tuple(notes),
            ),
            warmup=self.warmup,
            last_step=self.settings.steps,
        )
        seen = seen_by(records, self.folder)
        return Outcome(self._write(run), self.folder, seen, self.asked_by, self.warmup)

    def _write(self, run: Run) -> Run:
        """Write the Run; on a full disk, in the place of the tapes, whose content it has."""
        try:
            run.write(self.folder)
        except OSError:
            for tape in self.folder.glob("*.tape"):
                tape.unlink(missing_ok=True)
            try:
                run.write(self.folder)
            except OSError as error:
                note = f"the Run could not be written to {self.folder}: {error.strerror}"
                return replace(run, notes=(*run.notes, note))
        return run


def exit_like(code: int | None) -> int:
    """The exit code to leave with; a command that a signal ended is followed by the same signal."""
    if code is None or code >= 0:
        return code or 0
    import resource

    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.Signals(-code)})
    os.kill(os.getpid(), -code)
    time.sleep(1.0)
    return 128 - code


def _drop_pending(signals: Sequence[signal.Signals]) -> None:
    """A Ctrl-C that ended the command must not end the report."""
    while signal.sigtimedwait(set(signals), 0) is not None:
        pass


def why_empty(outcome: Outcome) -> str:
    """What a command did, of which no training step was measured."""
    n_steps, seen = outcome.run.steps.warmup, outcome.seen
    if n_steps:
        made = n_of(n_steps, "step")
        return f"it made {made}, all within the warm-up (--warmup {outcome.warmup})"
    if not seen.get("python"):
        return (
            "no Python that hotlap could look into was started "
            "(the options -I, -E and -S of python keep it out)"
        )
    if not seen.get("torch"):
        return "Python ran, but torch was never imported"
    events = [f"{name}: {n}" for name, n in seen.items() if name not in ("python", "torch")]
    return "torch was imported, but no step was made; seen were " + ", ".join(events)
