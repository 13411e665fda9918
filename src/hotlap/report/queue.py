"""The queue as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.records.job import QueuedJob
from hotlap.report.terminal import quantity
from hotlap.slurm.states import RAISES, reason_in_words, state_in_words

COLUMNS = "{:>10}  {:<18} {:<10} {:>5} {:>9} {:>9} {:>9}  {:<16} {}"


def render_queue(jobs: Sequence[QueuedJob]) -> str:
    """One line a job; why a waiting one waits, and what raises its priority."""
    if not jobs:
        return "no job of yours waits or runs"
    head = ("job", "name", "state", "GPUs", "used h", "limit h", "GPU h", "start", "why it waits")
    lines = [COLUMNS.format(*head)]
    for job in jobs:
        lines.append(_line(job).rstrip())
        if job.factors:
            lines.append(f"{'':>12}{_priority(job)}")
    used = sum(job.gpu_hours for job in jobs)
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    lines.append(f"{count}, {quantity(used)} GPU hours used so far")
    return "\n".join(lines)


def _line(job: QueuedJob) -> str:
    return COLUMNS.format(
        job.id,
        job.name if len(job.name) <= 18 else job.name[:17] + "…",
        state_in_words(job.state),
        job.gpus,
        f"{job.elapsed_h:.2f}",
        f"{job.limit_h:.2f}" if job.limit_h is not None else "none",
        f"{job.gpu_hours:.2f}",
        job.start.replace("T", " ")[:16] if job.start else "unknown",
        reason_in_words(job.reason),
    )


def _priority(job: QueuedJob) -> str:
    parts = sorted(job.factors.items(), key=lambda item: -item[1])
    told = ", ".join(f"{value} for {RAISES[name]}" for name, value in parts)
    return f"priority {job.priority}: {told}"
