"""Jobs as plain text: what they cost, when they would start, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotlap.records.job import Job, JobRequest, Resources
from hotlap.report.terminal import command_text, quantity


def render_cost(request: JobRequest) -> str:
    """What is about to be asked for, and what it would cost at most."""
    wanted = request.resources
    n_tasks = _array_size(request.array)
    times = f" x {n_tasks} array tasks" if n_tasks > 1 else ""
    return (
        f"{request.name}: {command_text(request.command)}\n"
        f"  {_shape(wanted)}{times}, {wanted.hours:g} h{_place(wanted)}\n"
        f"  at most {_cost(wanted, n_tasks)}"
    )


def _shape(wanted: Resources) -> str:
    nodes = "1 node" if wanted.nodes == 1 else f"{wanted.nodes} nodes"
    gpus = "1 GPU" if wanted.gpus_per_node == 1 else f"{wanted.gpus_per_node} GPUs"
    tasks = "1 task" if wanted.tasks_per_node == 1 else f"{wanted.tasks_per_node} tasks"
    cores = "1 core" if wanted.cpus_per_task == 1 else f"{wanted.cpus_per_task} cores"
    return f"{nodes} with {gpus}, {tasks} of {cores}" + (" each" if wanted.nodes > 1 else "")


def _place(wanted: Resources) -> str:
    named = {"": wanted.partition, "QoS ": wanted.qos, "account ": wanted.account}
    words = [f"{word}{value}" for word, value in named.items() if value]
    return f" on {', '.join(words)}" if words else ""


def _cost(wanted: Resources, n_tasks: int) -> str:
    text = f"{quantity(wanted.gpu_hours * n_tasks)} GPU hours"
    if wanted.billed_gpus > wanted.gpus:
        text += f" (whole nodes of {wanted.billed_gpus // wanted.nodes} GPUs are paid)"
    if wanted.charge is None:
        return text
    return f"{text} = {quantity(wanted.charge * n_tasks)} {wanted.unit or ''}".rstrip()


def _array_size(array: str | None) -> int:
    """How many tasks `0-9:2,20%4` is."""
    if array is None:
        return 1
    total = 0
    for part in array.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        total += len(range(int(first), int(last or first) + 1, int(step or 1)))
    return total


def render_sent(job: Job) -> str:
    """The number, where its logs are, and the commands that come next."""
    pattern = f"{job.id}_*" if job.request.array else job.id
    return (
        f"job {job.id}\n"
        f"  out     {job.request.folder}/{pattern}.out\n"
        f"  err     {job.request.folder}/{pattern}.err\n"
        f"  script  {job.request.folder}/job.sh\n"
        f"{_settings(job.request)}"
        f"  next    hotlap queue; hotlap logs {job.id} -f; hotlap cancel {job.id}"
    )


def _settings(request: JobRequest) -> str:
    """Where a tuner's job writes what it found."""
    words = request.before
    if "tune" not in words[:4]:
        return ""
    name = words[words.index("--output") + 1] if "--output" in words else "hotlap.toml"
    return f"  levers  {Path(request.cwd) / name}\n"


def render_starts(starts: Sequence[tuple[JobRequest, str | None, str]]) -> str:
    """The alternatives, the soonest first."""
    lines = [f"  {'starts':<21}{'hours':>6}  {'partition':<18}{'QoS':<20}at most"]
    ordered = sorted(starts, key=lambda one: (one[1] is None, one[1] or ""))
    for request, at, said in ordered:
        wanted = request.resources
        start = at.replace("T", " ") if at else "never"
        line = (
            f"  {start:<21}{wanted.hours:>6g}  {wanted.partition or '':<18}{wanted.qos or '':<20}"
            f"{_cost(wanted, _array_size(request.array)):<20}"
        )
        lines.append(f"{line.rstrip()}{f'  {said}' if said else ''}")
    return "\n".join(lines)
