"""Which jobs a user means: by number, by name, or by a pattern of names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hotlap.errors import RecordError, UsageError
from hotlap.records.job import JOB_FILE, Job
from hotlap.slurm import programs
from hotlap.slurm.build import FOLDER
from hotlap.slurm.memory import remembered
from hotlap.slurm.states import has_ended

NUMBER = re.compile(r"\d+(_\d+)?")


@dataclass(frozen=True, slots=True)
class Logs:
    """Where one job, or one task of an array, writes."""

    id: str
    name: str
    out: Path
    err: Path


def kept_jobs(runs_dir: Path) -> list[Job]:
    """The jobs that were sent from here, oldest first; a damaged record is passed over."""
    return sorted(_kept(runs_dir), key=lambda job: int(job.id))


def _kept(runs_dir: Path) -> Iterator[Job]:
    for path in (runs_dir / FOLDER).glob(f"*/{JOB_FILE}"):
        try:
            job = Job.read(path.parent)
        except RecordError:
            continue
        if job.id.isdigit():
            yield job


def find_logs(word: str, runs_dir: Path) -> list[Logs]:
    """The logs of the jobs that a word names."""
    found = [one for job in _matching(word, runs_dir) for one in _logs_of(job, word)]
    if not found and NUMBER.fullmatch(word):
        found = _foreign(word)
    if not found:
        other = "Slurm knows none of that number"
        if not programs.is_there("scontrol"):
            other = "there is no Slurm here that could know it"
        raise UsageError(f"no job '{word}' was sent from here, and {other}; {_known(runs_dir)}")
    return found


def newest_number(word: str, runs_dir: Path) -> str:
    """The number of the newest job that a word names; a number is taken as it is."""
    if NUMBER.fullmatch(word):
        return word
    jobs = _matching(word, runs_dir)
    if not jobs:
        raise UsageError(
            f"no job '{word}' was sent from here (a number, as 12 or 12_3, may be any job's); "
            f"{_known(runs_dir)}"
        )
    return jobs[-1].id


def _known(runs_dir: Path) -> str:
    jobs = kept_jobs(runs_dir)[-5:]
    if not jobs:
        return f"{runs_dir / FOLDER} holds no jobs yet"
    return "the last ones are " + ", ".join(f"{job.id} ({job.request.name})" for job in jobs)


def _matching(word: str, runs_dir: Path) -> list[Job]:
    jobs = kept_jobs(runs_dir)
    if NUMBER.fullmatch(word):
        by_number = [job for job in jobs if job.id == word.partition("_")[0]]
        if by_number:
            return by_number[-1:]
    if word == "last":
        return jobs[-1:]
    return [job for job in jobs if word == job.request.name or fnmatchcase(job.request.name, word)]


def _logs_of(job: Job, word: str) -> list[Logs]:
    folder, name = Path(job.request.folder), job.request.name
    if job.request.array is None:
        return [_pair(folder, job.id, name)]
    if "_" in word and NUMBER.fullmatch(word):
        return [_pair(folder, word, name)]
    tasks = {path.stem for path in folder.glob(f"{job.id}_*.out")}
    if not tasks:
        raise UsageError(f"no task of the array {job.id} ({name}) has begun yet")
    return [_pair(folder, task, name) for task in sorted(tasks, key=_task)]


def _task(text: str) -> int:
    return int(text.rpartition("_")[2])


def _pair(folder: Path, stem: str, name: str) -> Logs:
    return Logs(stem, name, folder / f"{stem}.out", folder / f"{stem}.err")


def _foreign(number: str) -> list[Logs]:
    """Of a job that was not sent by hotlap, as long as Slurm remembers it."""
    if not programs.is_there("scontrol"):
        return []
    found = []
    for said in remembered(number):
        if said.get("StdOut"):
            task = said.get("ArrayTaskId", "")
            own = f"{said['ArrayJobId']}_{task}" if task.isdigit() else said["JobId"]
            out, err = Path(said["StdOut"]), Path(said.get("StdErr", said["StdOut"]))
            found.append(Logs(own, said.get("JobName", ""), out, err))
    return found


def state_of(number: str) -> str | None:
    """A job's state: of Slurm's memory, else of its accounts; None where neither knows.

    Of an array, that of a task that is not over, as long as there is one.
    """
    states = [said.get("JobState", "") for said in remembered(number)]
    if not states and programs.is_there("sacct"):
        words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}"]
        states = programs.attempt([*words, "--format=State"]).stdout.splitlines()
    going = [state for state in states if not has_ended(state)]
    return next(iter(going or states), None)


def cancel(word: str) -> list[str]:
    """Take back the jobs that a word names; the numbers of those that were not over."""
    if NUMBER.fullmatch(word):
        numbers = [word]
    else:
        from hotlap.slurm.own_jobs import own_jobs

        live = [job for job in own_jobs() if job.name == word or fnmatchcase(job.name, word)]
        numbers = list(dict.fromkeys(job.id.partition("_")[0] for job in live))
        if not numbers:
            raise UsageError(f"no job of yours named '{word}' waits or runs; see `hotlap queue`")
    ended = []
    for number in numbers:
        state = state_of(number)
        if state is None:
            raise UsageError(f"Slurm knows no job {number}; `hotlap queue` lists yours")
        if has_ended(state):
            continue
        programs.output(["scancel", number])
        ended.append(number)
    return ended
