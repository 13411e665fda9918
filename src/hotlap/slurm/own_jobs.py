"""A user's own jobs, as `squeue` and `sprio` tell of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hotlap.records.job import QueuedJob
from hotlap.slurm import programs
from hotlap.slurm.forms import parse_hours, whole

COLUMNS = "%i|%T|%r|%P|%q|%D|%b|%M|%l|%S|%Q|%j"
"""The name comes last: a foreign job's may hold a bar."""
FACTORS = {"age": "%A", "fair-share": "%F", "size": "%J", "partition": "%P", "QoS": "%Q"}
_GPUS = re.compile(r"gpu(?::[^:,]+)?:(\d+)")


def own_jobs() -> list[QueuedJob]:
    """Those that wait or run, the oldest first."""
    lines = programs.output(["squeue", "--me", "--noheader", f"--format={COLUMNS}"]).splitlines()
    jobs = [_job(line) for line in lines]
    waiting = [job.id for job in jobs if job.state == "PENDING"]
    factors = _factors(waiting) if waiting else {}
    filled = [_with_factors(job, factors.get(_base(job.id), {})) for job in jobs]
    return sorted(filled, key=lambda job: _order(job.id))


def _job(line: str) -> QueuedJob:
    number, state, reason, partition, qos, nodes, tres, elapsed, limit, start, priority, name = (
        line.split("|", 11)
    )
    match = _GPUS.search(tres)
    return QueuedJob(
        id=number,
        name=name,
        state=state,
        reason=reason,
        partition=partition,
        qos=qos,
        nodes=whole(nodes) or 1,
        gpus=(int(match[1]) if match else 0) * (whole(nodes) or 1),
        elapsed_h=parse_hours(elapsed) or 0.0,
        limit_h=parse_hours(limit),
        start=None if start in ("N/A", "Unknown", "") else start,
        priority=whole(priority) or 0,
    )


def _with_factors(job: QueuedJob, factors: dict[str, int]) -> QueuedJob:
    return replace(job, factors=factors) if job.state == "PENDING" else job


def _factors(ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """What the priorities of waiting jobs are made of; nothing where sprio cannot say."""
    if not programs.is_there("sprio"):
        return {}
    wanted = ",".join(dict.fromkeys(map(_base, ids)))
    form = "|".join(["%i", *FACTORS.values()])
    done = programs.attempt(["sprio", "--noheader", f"--jobs={wanted}", f"--format={form}"])
    found = {}
    for line in done.stdout.splitlines():
        number, *values = [cell.strip() for cell in line.split("|")]
        if len(values) == len(FACTORS):
            numbers = zip(FACTORS, map(whole, values), strict=True)
            found[_base(number)] = {name: value for name, value in numbers if value}
    return found


def _base(number: str) -> str:
    return number.partition("_")[0]


def _order(number: str) -> tuple[int, int]:
    base, _, task = number.partition("_")
    return whole(base) or 0, whole(task) or 0
