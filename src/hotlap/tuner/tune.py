"""Tune a command: from the request to the Ladder, with `hotlap.toml` holding the best so far."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from hotlap import __version__
from hotlap.chronometer.launch import resolve
from hotlap.errors import UsageError
from hotlap.levers import check_names, find_levers
from hotlap.levers.common.edits import Edit, can_apply, describe, unified_diff
from hotlap.levers.common.lever import Lever
from hotlap.levers.common.loaders import given_workers
from hotlap.levers.common.trainers import edits_of
from hotlap.levers.common.workload import (
    Events,
    Seen,
    Site,
    Workload,
    read_events,
    workload_from,
)
from hotlap.machine.host import cpu_flags, describe_host
from hotlap.records.ladder import Ladder, Rate, Rung, Trial
from hotlap.records.run import Run
from hotlap.tuner.bench import MIN_STEPS, Bench, Settings, memory_of
from hotlap.tuner.climb import Climb
from hotlap.tuner.given_input import MISSING, input_identity, is_left_out
from hotlap.tuner.objective import OBJECTIVES, Objective
from hotlap.tuner.order import Candidate, order_levers
from hotlap.tuner.scratch import LINKED, SKIPPED, Scratch
from hotlap.tuner.settings import SettingsFile, keep_older, write_settings
from hotlap.tuner.trial import TrialPlan, TrialRequest, run_trial
from hotlap.wording import n_of

BATCHES_AHEAD = 2
"""That a DataLoader's worker loads ahead, unless it is told otherwise."""
MOST_SOURCES, MOST_FOLDERS, LARGEST_SOURCE_BYTES = 2000, 2000, 4 << 20
"""Of files that are looked at to see whether they are those of an interrupted climb."""
SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")
SHARE_OF_TRIAL = 60
"""A trial's measured part is at most this part of the budget."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What is to be tuned, and how."""

    command: tuple[str, ...]
    runs_dir: Path
    output: Path
    result_file: Path | None = None
    """Where the ladder goes as JSON."""
    budget_s: float = 900.0
    objective: str = "time"
    memory_limit_bytes: float | None = None
    allowed: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    steps: int | None = None
    lever_files: tuple[str, ...] = ()
    in_place: bool = False
    scratch_dir: Path | None = None
    """Where the copy of the folder is made; None is the machine's own temporary folder."""
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told while it climbs."""

    started: Callable[[Settings], None] = lambda settings: None
    baseline: Callable[[Sequence[Trial], Rate], None] = lambda trials, rate: None
    """Its trials and what both came to."""
    rung: Callable[[Rung], None] = lambda rung: None
    note: Callable[[str], None] = lambda text: None


def host_workload() -> Workload:
    """What is known of the machine before anything ran on it."""
    host = describe_host()
    return Workload(n_cpus=host.n_cpus_allocated or 1, cpu_flags=cpu_flags())


@dataclass
class Tuning:
    """A command on its bench."""

    request: TuneRequest
    watcher: Watcher
    levers: tuple[Lever, ...] = ()
    workload: Workload = field(default_factory=host_workload)
    _scratch: Scratch | None = None
    _told: set[str] = field(default_factory=set)
    _puts_back: bool = False
    """Whether the copy is put back before each trial: a download or a cache would be lost."""
    _first_baseline: Rate | None = None

    def __post_init__(self) -> None:
        self.levers = find_levers(self.request.lever_files)
        names = (*self.request.allowed, *self.request.only, *self.request.skipped)
        check_names(names, self.levers)
        resolve(self.request.command)

    def climb(self) -> Ladder:
        """Climb to the end, or until the time is up or somebody interrupts."""
        began, started = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self.scratch() as folder:
            bench = self.bench(folder, self._state_folder / "trials.jsonl")
            climb = Climb(
                bench=bench,
                levers={lever.name: lever for lever in self.levers},
                needed_values=self._needed_value,
                memory_limit_bytes=self.request.memory_limit_bytes,
                objective=self._objective,
                on_rung=self.watcher.rung,
                on_kept=self._write_settings,
                start_over=self.start_over,
            )
            status = "complete"
            try:
                first = self._look(climb)
                self._check_objective(first, climb)
                self.learn(first)
                climb.has_dropout = self.workload.has_dropout
                self._first_baseline = climb.rate_of({})
                self.watcher.baseline(climb.reference.baselines, self._first_baseline)
                climb.climb(self._order)
                if not climb.is_complete:
                    status = "out of budget"
            except KeyboardInterrupt:
                if not climb.reference.baselines:
                    raise
                status = "interrupted"
                if climb.best:
                    climb.result = climb.ratio_so_far()
            ladder = self._ladder(climb, status, started, time.monotonic() - began)
        if status != "interrupted" or climb.best or not self.request.output.exists():
            self._write_settings(climb.best)  # interrupted with nothing yet, older ones stay
        if status != "interrupted":
            self.forget_trials()
        self.keep(ladder)
        return ladder

    def keep(self, ladder: Ladder) -> None:
        """Write it among the Runs."""
        name = f"ladder-{ladder.started.replace(':', '')[:17]}.json"
        ladder.write(self.request.runs_dir / name)

    def _look(self, climb: Climb) -> Trial:
        """The baseline, after a first look; one that failed is not remembered: it may be mended."""
        try:
            self.learn(climb.look())
            if is_left_out():
                self.watcher.note(f"standard input is a pipe that is not empty; {MISSING}")
            return climb.measure_baseline()
        except UsageError:
            self.forget_trials()
            raise

    def _check_objective(self, baseline: Trial, climb: Climb) -> None:
        """Whether there is something to better, and something to stay below."""
        if self._objective.score(baseline) is None:
            self.forget_trials()
            raise UsageError(
                f"--objective {self.request.objective}: this machine does not tell it; "
                "--objective time needs nothing but a clock"
            )
        limit, memory = self.request.memory_limit_bytes, memory_of(baseline)
        if limit and memory and memory > limit:
            climb.notes.append(
                f"the command as it is takes {memory / 2**30:.2f} GiB, more than the limit of "
                f"{limit / 2**30:.2f} GiB"
            )

    def forget_trials(self) -> None:
        """Remove the Runs of the trials: what they came to is in the ladder."""
        shutil.rmtree(self._state_folder, ignore_errors=True)

    def forget_runs(self) -> None:
        """Remove the Runs of trials that are on no file; those of an interrupted climb stay."""
        shutil.rmtree(self._passing_folder, ignore_errors=True)

    # The bench --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Where trials run."""
        if self.request.in_place:
            self._scratch = None
            yield Path.cwd()
            return
        with Scratch(Path.cwd(), self.request.scratch_dir) as copy:
            self._scratch = copy
            yield copy.folder
            for path in copy.changed():
                self.watcher.note(f"a trial has written to {path}, which is linked and not copied")

    def start_over(self) -> bool:
        """Have all further trials start from the files that the first one found.

        Not done before it is needed: what the first one downloads is there for the others.
        """
        mark = self._state_folder / "puts-back"  # for a climb that goes on after an interruption
        written = self._scratch.written() if self._scratch is not None else []
        if self._puts_back or not (written or mark.exists()):
            return False
        self._puts_back = True
        if mark.parent.is_dir():
            mark.touch()
        files = f" (as {written[-1]})" if written else ""
        self.watcher.note(
            f"a second run of the command goes by what the first one wrote{files}: the copy that "
            "trials run in is put back before each of them"
        )
        return True

    def always_put_back(self) -> None:
        """Have each trial start from the files of the user, whatever that costs."""
        self._puts_back = True

    def bench(self, folder: Path, log: Path | None) -> Bench:
        """The bench that trials of this command run on."""
        command = self.request.command
        if self._scratch is not None:
            command = self._scratch.words(command)
        runs = self._passing_folder if log is None else self._state_folder / "runs"
        plan = TrialPlan(command, folder, runs.resolve(), self.levers, self.request.lever_files)

        def make(levers: Settings, seed: int, n_steps: int, n_warmup: int, limit_s: float) -> Trial:
            if self._puts_back and self._scratch is not None:
                self._scratch.put_back()
            request = TrialRequest(levers, n_steps, n_warmup, limit_s, seed)
            return run_trial(plan, request, self.workload)

        bench = Bench(
            make,
            self._objective.score,
            self.request.budget_s,
            min(self._objective.trial_s, self.request.budget_s / SHARE_OF_TRIAL),
            log=log,
            n_steps=self.request.steps or MIN_STEPS,
            queue=self._queue,
            fixed_steps=self.request.steps is not None,
            on_start=self.watcher.started,
        )
        if log is not None:
            if self.request.fresh:
                log.unlink(missing_ok=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            bench.load()
            if bench.n_resumed:
                n_trials = n_of(bench.n_resumed, "trial")
                self.watcher.note(
                    f"going on with a climb that was interrupted after {n_trials} (--fresh starts "
                    "anew)"
                )
        return bench

    def _queue(self, settings: Settings) -> int:
        """Warm-up steps in which workers empty what they loaded ahead while the first step ran."""
        own = [loader.facts.get("num_workers", 0) for loader in self.workload.loaders]
        n_workers = max(int(n) for n in (settings.get("workers", 0), *own))
        return n_workers * int(settings.get("prefetch_factor", BATCHES_AHEAD))

    def learn(self, baseline: Trial) -> None:
        """What the baseline was seen to do decides which levers apply."""
        run_folder = Path(baseline.run)
        run, events = Run.read(run_folder), read_events(run_folder)
        self._tell_of_writes(events)
        self.workload = workload_from(
            events,
            baseline.phases_s,
            self.workload.n_cpus,
            run.world_size or 1,
            self.workload.cpu_flags,
        )
        self.workload = replace(self.workload, waits_for_host=baseline.waits_for_host)

    def _tell_of_writes(self, events: Events) -> None:
        """Files that trials do not write into their copy of the folder."""
        if self._scratch is None:
            return
        for event in events.seen:
            path = event["facts"]["path"] if event["seen"] == "write" else None
            if path and path not in self._told:
                self._told.add(path)
                self.watcher.note(f"the command writes {path}, outside its folder: so do trials")

    @cached_property
    def _state_folder(self) -> Path:
        """Of this climb alone: what a user changes while it goes on makes another one."""
        words = [str(Path.cwd()), __version__, *self.request.command, *self.request.lever_files]
        words += [self.request.objective, str(self.request.memory_limit_bytes)]
        words += [*self.request.allowed, str(self.request.steps)]
        words += [*self.request.only, "-", *self.request.skipped, *self._machine_words()]
        words += [input_identity(), *_sources(self.request.command, self._written)]
        name = hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:12]
        return self.request.runs_dir / f"tune-{name}"

    def _machine_words(self) -> list[str]:
        """What trials on file are of, besides the command: another machine makes others."""
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        words = [platform.node(), sys.executable, str(self.workload.n_cpus), devices]
        with contextlib.suppress(metadata.PackageNotFoundError):  # the command may have its own
            words.append(metadata.version("torch"))
        return words

    @property
    def _written(self) -> list[Path]:
        """What hotlap itself writes."""
        request = self.request
        ours = (request.output, request.runs_dir, request.result_file)
        return [path.resolve() for path in ours if path is not None]

    @property
    def _passing_folder(self) -> Path:
        """Of trials that nobody goes on with: those of a sweep, or of a proof."""
        return self._state_folder.with_name(f"{self._state_folder.name}-passing")

    @property
    def _objective(self) -> Objective:
        return OBJECTIVES[self.request.objective]

    def _order(self, kept: Settings, trial: Trial) -> Sequence[Candidate]:
        """What to try on top of the levers that are kept, after a look at a trial of them."""
        request = self.request
        workload = replace(
            self.workload, phases_s=trial.phases_s, waits_for_host=trial.waits_for_host
        )
        chosen = [
            lever
            for lever in self.levers
            if lever.name not in request.skipped
            and (not request.only or lever.name in request.only)
        ]
        return order_levers(chosen, workload, kept, request.allowed, request.objective)

    def _needed_value(self, lever: Lever) -> str | None:
        is_allowed = lever.changes != "maths" or lever.name in self.request.allowed
        if lever.name in self.request.skipped or not is_allowed:
            return None
        values = lever.values(self.workload) if lever.applies(self.workload).yes else ()
        return values[0] if values else None

    # The result -------------------------------------------------------------------------------

    def _ladder(self, climb: Climb, status: str, started: str, total_s: float) -> Ladder:
        baseline = climb.rate_of({})
        best = climb.rate_of(climb.best)
        edits = self.edits(climb.best)
        told = [describe(edit) for by_lever in edits for edit in by_lever]
        known = climb.reference.baselines[0].samples_per_step is not None
        return Ladder(
            command=self.request.command,
            started=started,
            hotlap=__version__,
            objective=self.request.objective,
            unit="samples/s" if known else "steps/s",
            status=status,  # type: ignore[arg-type]
            baseline=baseline,
            best=best if climb.best else baseline,
            ratio=climb.result.value,
            ratio_low=climb.result.low,
            ratio_high=climb.result.high,
            levers=dict(climb.best),
            rungs=tuple(climb.rungs),
            total_s=total_s,
            notes=tuple(climb.notes),
            edits=tuple(dict.fromkeys(told)),
            diff=unified_diff(
                [edit for by_lever in edits if _is_whole(by_lever) for edit in by_lever]
            ),
            first_baseline=self._first_baseline,
            budget_s=self.request.budget_s,
            further_try_s=climb.further_try_s,
        )

    def edits(self, levers: Mapping[str, str]) -> list[tuple[Edit, ...]]:
        """What a user would change to have each of these levers without hotlap."""
        by_name = {lever.name: lever for lever in self.levers}
        workload = _at_home(self.workload, self._scratch)
        # Some arguments are for loaders with workers alone: those that this lever gives count too.
        with_workers = given_workers(workload, int(levers.get("workers", 0)))
        return [
            edits_of(by_name[name], value, workload if name == "workers" else with_workers)
            for name, value in levers.items()
        ]

    def _write_settings(self, levers: Mapping[str, str]) -> None:
        """Write the best so far; what another climb or a user wrote is kept beside it."""
        # Beside the trials on file: a climb that goes on after an interruption knows its own.
        mark, output = self._state_folder / "wrote-settings", self.request.output
        if not mark.exists() or mark.read_text() != _identity(output):
            older = keep_older(output)
            if older:
                self.watcher.note(f"what {output} held before is kept in {older}")
        comment = f"Written by hotlap {__version__} tune; `hotlap run` applies it."
        kept = SettingsFile(dict(levers), self.request.command)
        write_settings(output, kept, comment)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(_identity(output))


def _identity(file: Path) -> str:
    """Of what a file holds; empty where there is none."""
    with contextlib.suppress(OSError):
        return f"{file.resolve()} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    return ""


def _sources(command: Sequence[str], written: Sequence[Path]) -> list[str]:
    """What the command's files, and sources and configurations beside them, hold.

    Trials are of these alone. Files and folders that hotlap writes are none of them.
    """
    named = [path for path in map(Path, command) if path.suffix]
    found = _source_files(Path.cwd().resolve())
    beside = (path for path in found if not any(path.is_relative_to(one) for one in written))
    digests = []
    for path in (*named, *islice(beside, MOST_SOURCES)):
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_size <= LARGEST_SOURCE_BYTES:
                digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
    return digests


def _source_files(folder: Path) -> Iterator[Path]:
    """Sources and configurations, in a fixed order; of folders that hold data, the first ones."""
    for i, (where, folders, files) in enumerate(os.walk(folder)):
        if i == MOST_FOLDERS:
            return
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in SKIPPED | LINKED
        )
        yield from (Path(where, name) for name in sorted(files) if name.endswith(SOURCE_SUFFIXES))


def _is_whole(edits: Sequence[Edit]) -> bool:
    """Whether all edits of a lever can be made in the source: half of them may do harm."""
    return all(edit.kind in ("environment", "advised") or can_apply(edit) for edit in edits)


def _at_home(workload: Workload, scratch: Scratch | None) -> Workload:
    """The workload with the user's own files in the place of the copies."""
    if scratch is None:
        return workload

    def home(seen: Seen) -> Seen:
        if seen.site is None:
            return seen
        return replace(seen, site=Site(scratch.original(seen.site.file), seen.site.line))

    changed: dict[str, Any] = {}
    for one in fields(workload):
        value = getattr(workload, one.name)
        if isinstance(value, tuple) and all(isinstance(seen, Seen) for seen in value):
            changed[one.name] = tuple(map(home, value))
    return replace(workload, **changed)
