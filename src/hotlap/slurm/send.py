"""Send jobs: each keeps its own script, and what Slurm says against it is shown as it is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.records.job import Job, JobRequest
from hotlap.slurm import programs
from hotlap.slurm.script import comment, script

SCRIPT = "job.sh"
HINTS = (
    ("Invalid account or account/partition", "`hotlap submit --account` names another account"),
    ("QOSMaxWallDurationPerJobLimit", "the QoS allows less time: shorten --hours or change --qos"),
    ("QOSMaxGRESPerUser", "the QoS allows you fewer GPUs at a time: lower --gpus, or change --qos"),
    ("QOSMaxGRESPerJob", "the QoS allows a job fewer GPUs: lower --gpus or change --qos"),
    ("QOSMaxSubmitJob", "you have as many jobs waiting as the QoS allows"),
    ("AssocMaxSubmitJobLimit", "you have as many jobs waiting as your account allows"),
    ("Invalid qos", "this account may not use that QoS; `sacctmgr show associations` lists yours"),
    ("Invalid partition", "`hotlap clusters check` says how the profile differs from the cluster"),
    ("invalid partition", "`hotlap clusters check` says how the profile differs from the cluster"),
    ("Requested time limit is invalid", "the partition allows less time: shorten --hours"),
    ("Invalid feature", "no node has that --constraint"),
    ("node configuration is not available", "no node of the partition has what was asked for"),
    ("More processors requested than permitted", "the partition has fewer nodes: lower --gpus"),
    ("Job dependency problem", "--after names a job that Slurm no longer knows"),
)
"""What Slurm says, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Start:
    """When Slurm thinks that a job would begin."""

    request: JobRequest
    at: str | None
    said: str


def send(request: JobRequest, cluster: str) -> Job:
    """Write the script into a folder of its own and submit it."""
    folder = Path(request.folder)
    text = script(request)
    try:
        folder.mkdir(parents=True)
        (folder / SCRIPT).write_bytes(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        job_id = _submit(request, folder / SCRIPT)
    except Refused:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    job = Job(job_id, request, now, cluster)
    try:
        job.write()
    except OSError as error:
        raise UsageError(
            f"job {job_id} was sent, but {folder} cannot be written any more: {error.strerror}"
        ) from None
    return job


class Refused(UsageError):
    """Slurm said no: there is no such job."""


def _submit(request: JobRequest, path: Path) -> str:
    """The number of the job; its answer may be lost on the way, and not the job."""
    try:
        done = programs.attempt(["sbatch", "--parsable", str(path)], cwd=Path(request.cwd))
    except KeyboardInterrupt:
        arrived = _arrived(request, path)
        if arrived is None:
            raise Refused("interrupted before Slurm had the job: nothing was sent") from None
        raise UsageError(
            f"interrupted, but Slurm has the job: `hotlap cancel {arrived}` takes it back"
        ) from None
    except programs.NoAnswer as error:
        arrived, said = _arrived(request, path), f"{error}"
    else:
        if done.returncode == 0:
            return done.stdout.strip().partition(";")[0]
        arrived = _arrived(request, path) if "timed out" in done.stderr else None
        said = refusal(done.stderr)
    if arrived is None:
        raise Refused(said)
    return arrived


def _arrived(request: JobRequest, path: Path) -> str | None:
    """Sent again, a job that has arrived would run twice."""
    try:
        return _find(request)
    except UsageError:
        raise UsageError(
            f"Slurm did not answer, and whether it has the job '{request.name}' is not known: look "
            f"with `hotlap queue` before you send it again; its script is {path}"
        ) from None


def _find(request: JobRequest) -> str | None:
    rows = programs.table(["squeue", "--me", "--noheader", "--array-unique", "--format=%F|%k"])
    return next((row[0] for row in rows if row[1:] == [comment(request)]), None)


def refusal(said: str) -> str:
    """Slurm's own words, with a hint where the cause is known."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines()]
    text = "; ".join(line for line in lines if line.strip())
    hint = next((f" ({hint})" for part, hint in HINTS if part in text), "")
    return f"Slurm refused the job: {text or 'it gave no reason'}{hint}"


def alternatives(ways: Sequence[JobRequest]) -> list[JobRequest]:
    """Every partition and QoS, and the best of them with less time: short jobs fill gaps."""
    best = ways[0]
    shorter = [
        replace(best, resources=replace(best.resources, hours=best.resources.hours * share))
        for share in (0.5, 0.25)
    ]
    return [*ways, *shorter]


def start_of(request: JobRequest) -> Start:
    """When Slurm thinks it would begin; nothing is submitted, though a number is used up."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SCRIPT
        path.write_bytes(script(request).encode("utf-8", "surrogateescape"))
        words = ["sbatch", "--test-only", str(path)]
        done = programs.attempt(words, cwd=Path(request.cwd))
    match = re.search(r"to start at (\S+)", done.stderr)
    if done.returncode or match is None:
        return Start(request, None, refusal(done.stderr))
    return Start(request, match[1], "")
