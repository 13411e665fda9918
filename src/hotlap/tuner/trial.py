"""One trial: a short run of the command with some levers, in clean processes.

A trial is `hotlap time` in a process group of its own, so that everything it starts can be ended.
However it ends is a state of the trial and never an error of the tuner.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.chronometer.compare import measured_steps
from hotlap.chronometer.merge import training_ranks
from hotlap.chronometer.session import SKIP_FLOPS_VARIABLE
from hotlap.errors import RecordError
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.lever import Lever
from hotlap.levers.common.workload import (
    Events,
    Workload,
    phases_of,
    read_events,
    waits_for_host,
)
from hotlap.records.ladder import Fingerprint, State, Trial
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run
from hotlap.tuner.given_input import MISSING, is_missed, trial_input
from hotlap.wording import n_of

TRIAL_VARIABLE = "HOTLAP_TRIAL"
"""Marks every process of a trial, also one that left its process group."""
OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
}
HOTLAP = "import sys; sys.path[0] or sys.path.pop(0); from hotlap.cli import main; sys.exit(main())"
"""As the program does: `-m hotlap` would look for modules among the user's own first."""
LEAST_MEASURED = 8
"""Steps behind the warm-up: fewer tell nothing of how well their rate is known."""
TERMINATE_S = 10.0
N_LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What all trials of a climb have in common."""

    command: tuple[str, ...]
    folder: Path
    """Where the command runs."""
    runs_dir: Path
    levers: tuple[Lever, ...]
    lever_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What one trial is to be."""

    levers: Mapping[str, str]
    n_steps: int
    n_warmup: int
    timeout_s: float
    seed: int = 0


def environment_of(
    levers: Sequence[Lever], values: Mapping[str, str], workload: Workload
) -> dict[str, str]:
    """What the levers need in the environment."""
    environment: dict[str, str] = {}
    for lever in levers:
        if lever.name in values:
            environment |= lever.environment(values[lever.name], workload)
    return environment


def run_trial(plan: TrialPlan, request: TrialRequest, workload: Workload) -> Trial:
    """Run it to its end, whatever that is; nothing of it is left running."""
    name = secrets.token_hex(6)
    runs_dir = plan.runs_dir / name
    runs_dir.mkdir(parents=True)
    log = runs_dir / "output.log"
    began = time.monotonic()
    with log.open("wb") as stream, trial_input() as standard_input:
        process = subprocess.Popen(
            _words(plan, request, runs_dir),
            cwd=plan.folder,
            env=_environment(plan, request, workload, name),
            stdin=standard_input,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            is_hung = not _wait(process, request.timeout_s)
        finally:
            _end(process, name)
    total_s = time.monotonic() - began
    folder = next((path.parent for path in runs_dir.glob("*/run.json")), None)
    events = read_events(folder) if folder else Events({}, {}, (), ())
    for lever in plan.levers:
        if lever.name in request.levers:
            variables = lever.environment(request.levers[lever.name], workload)
            for name_and_value in variables.items():
                events.done.setdefault(lever.name, []).append("=".join(name_and_value))
    return _trial(request, folder, events, is_hung, total_s, _last_lines(log))


def _words(plan: TrialPlan, request: TrialRequest, runs_dir: Path) -> list[str]:
    options = ["--quiet", "--steps", str(request.n_steps), "--warmup", str(request.n_warmup)]
    words = [sys.executable, "-c", HOTLAP, "time", *options, "--runs-dir", str(runs_dir), "--"]
    return [*words, *plan.command]


def _environment(
    plan: TrialPlan, request: TrialRequest, workload: Workload, name: str
) -> dict[str, str]:
    orders = Orders(dict(request.levers), request.seed, plan.lever_files, is_trial=True)
    return {
        **os.environ,
        **{k: v for k, v in OFFLINE.items() if os.environ.get(k) != "disabled"},
        "PYTHONHASHSEED": "0",
        **environment_of(plan.levers, request.levers, workload),
        **orders.to_environment(),
        TRIAL_VARIABLE: name,
        SKIP_FLOPS_VARIABLE: "1",
    }


def _die_with_parent() -> None:
    """Have the kernel end a trial whose tuner was killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes], name: str) -> None:
    """End whatever of the trial still runs; politely first, so that its Run is written."""
    with _undisturbed():  # by somebody who presses Ctrl-C twice
        _end_all(process, name)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait that would end this process; only its main thread hears them."""
    is_main = threading.current_thread() is threading.main_thread()
    ours, heard = (signal.SIGINT, signal.SIGTERM) if is_main else (), list[int]()
    before = {n: signal.signal(n, lambda number, frame: heard.append(number)) for n in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard and sys.exc_info()[0] is None:  # else it is on its way out already
        signal.raise_signal(heard[0])


def _end_all(process: subprocess.Popen[bytes], name: str) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + TERMINATE_S
    while (left := marked_processes(name)) and time.monotonic() < deadline:
        for pid in left:  # one that was starting another while it was looked at is met next time
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    process.wait()


def marked_processes(name: str) -> list[int]:
    """Processes that carry a trial's mark in their environment."""
    mark = f"{TRIAL_VARIABLE}={name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _last_lines(log: Path) -> tuple[str, ...]:
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - 8192))
        text = stream.read().decode("utf-8", errors="replace")
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-N_LAST_LINES:]


def _trial(
    request: TrialRequest,
    folder: Path | None,
    events: Events,
    is_hung: bool,
    total_s: float,
    last_lines: tuple[str, ...],
) -> Trial:
    run, ranks = _read(folder)
    state, reason = _state(run, is_hung, request)
    losses = _losses(ranks)
    if state == "ok" and any(loss is not None and not math.isfinite(loss) for loss in losses):
        step = next(i for i, x in enumerate(losses, 1) if x is not None and not math.isfinite(x))
        state, reason = "diverged", f"the loss of step {step} is {losses[step - 1]}"
    rate = (run.samples_per_s or run.steps_per_s) if run else None
    samples = _samples_by_rank(run)
    return Trial(
        levers=dict(request.levers),
        seed=request.seed,
        state=state,
        reason=reason,
        last_lines=() if state == "ok" else last_lines,
        total_s=total_s,
        n_steps=run.steps.measured + run.steps.warmup if run else 0,
        is_cut=run is not None and run.status == "cut",
        step_s=tuple(measured_steps(run, ranks)) if run and run.step_s else (),
        samples_per_s=rate,
        samples_per_step=sum(samples) if samples else None,
        phases_s=phases_of(run),
        waits_for_host=waits_for_host(ranks),
        losses=losses,
        device_peak_bytes=run.memory.device_peak_bytes if run else None,
        host_peak_bytes=run.memory.host_peak_bytes if run else None,
        energy_per_sample_j=1 / run.power.samples_per_j
        if run and run.power.samples_per_j
        else None,
        mean_w=run.power.mean_w if run else None,
        fingerprints=fingerprints_of(events.fingerprints),
        done={name: tuple(what) for name, what in events.done.items()},
        failed=events.failed,
        run=str(folder) if folder else "",
        samples=_samples_by_step(ranks),
        samples_by_rank=samples,
    )


def _read(folder: Path | None) -> tuple[Run | None, list[RankRecord]]:
    if folder is None:
        return None, []
    try:
        run = Run.read(folder)
        ranks, _ = training_ranks(RankRecord.read(p) for p in sorted(folder.glob("rank-*.json")))
    except RecordError:
        return None, []
    return run, list(ranks)


def _state(run: Run | None, is_hung: bool, request: TrialRequest) -> tuple[State, str]:
    if is_hung:
        return "hung", f"it had not ended after {request.timeout_s:.0f} s and was ended"
    if run is None:
        return "crashed", "it left no Run"
    n_steps = run.steps.measured + run.steps.warmup
    if run.status == "oom":
        return "oom", "it ran out of memory"
    if run.status in ("ok", "cut"):
        if not n_steps:
            return "too short", "it ended without a training step"
        if run.step_s is None or (run.status == "ok" and run.steps.measured < LEAST_MEASURED):
            needed = request.n_warmup + LEAST_MEASURED
            few = f"too few to be measured (at least {needed} are needed)"
            return "too short", f"it ends after {n_of(n_steps, 'step')}, {few}"
        return "ok", ""
    after = f"after {n_of(n_steps, 'step')}" if n_steps else "before its first step"
    return "crashed", f"it ended with {_ending(run.exit_code)} {after}"


def why_not_tuned(trial: Trial, *, ran_before: bool = False) -> str:
    """What is told of the command as it is, where it did not end well."""
    how = "cannot be tuned" if trial.n_steps else "does not run"
    how = "ran once, but not a second time" if ran_before else how
    what = "the budget is too short" if trial.state == "cut short" else f"the command itself {how}"
    missed = f"; {MISSING}" if is_missed(trial.last_lines) else ""
    lines = "".join(f"\n  {line}" for line in trial.last_lines)
    return f"{what}: {trial.reason}{missed}{lines}"


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        names = {one.value: one.name for one in signal.Signals}
        return f"signal {names.get(-code, -code)}"  # those of real time have no name
    return f"exit code {code}"


def _losses(ranks: Sequence[RankRecord]) -> tuple[float | None, ...]:
    """The losses of rank 0."""
    return ranks[0].steps.loss if ranks else ()


def _samples_by_rank(run: Run | None) -> tuple[float, ...]:
    """Of a step, counted: rates of ranks that wait for one another differ by noise."""
    if run is None or not run.steps.measured:
        return ()
    known = [rank.samples / run.steps.measured for rank in run.ranks if rank.samples is not None]
    return tuple(known) if len(known) == len(run.ranks) else ()


def _samples_by_step(ranks: Sequence[RankRecord]) -> tuple[int, ...]:
    """Of all ranks; none where one step of one rank is not known."""
    steps = zip(*(rank.steps.samples for rank in ranks), strict=False)
    known = [tuple(n for n in step if n is not None) for step in steps]
    return tuple(map(sum, known)) if all(len(step) == len(ranks) for step in known) else ()


def fingerprints_of(events: Sequence[Mapping[str, Any]]) -> tuple[Fingerprint, ...]:
    """Of the first rank: each has batches of its own."""
    merged: dict[int, dict[str, tuple[Any, ...]]] = {}
    for event in sorted(events, key=lambda event: event.get("rank", 0)):
        entry = merged.setdefault(event["fingerprint"], {})
        for key in ("inputs", "gradients", "moved"):
            if key in event:
                entry.setdefault(key, tuple(event[key]))
    return tuple(
        Fingerprint(update, *(entry.get(k, ()) for k in ("inputs", "gradients", "moved")))
        for update, entry in sorted(merged.items())
    )
