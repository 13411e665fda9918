"""What Slurm says about the job step that this process is a task of.

Only srun makes a step with ranks. Python run in a batch script, or in the shell that salloc opens,
is one process, although the variables of its allocation are there:

    started by          SLURM_PROCID  SLURM_STEP_ID  SLURM_NTASKS
    srun                0, 1, 2, …    0, 1, 2, …     of the step
    a batch script      0             not set        of the allocation
    salloc              not set       not set        of the allocation
    salloc, on a node   0             4294967290     of the allocation

One case looks like srun and is not: Python typed into the shell of `srun --ntasks 4 --pty bash`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hotlap.distributed.variables import check_below, number, read
from hotlap.errors import UsageError

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Steps that are no srun's have the highest numbers: the batch script, the interactive shell."""
FIRST_PORT = 15_000
N_PORTS = 15_000
"""Below 32768, where Linux begins to hand out ports to whoever asks for any."""
STEP_STRIDE = 7919
"""So far apart are the ports of two steps of one job: those of its neighbours lie in between."""

_HOST = re.compile(r"(?:[^,\[\]\s]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, slots=True)
class Step:
    """A task of a job step of srun's, and where the others are."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    tasks_per_node: tuple[int, ...]
    nodes: tuple[str, ...]
    """Names, in the order of `node_rank`."""
    port: int
    """Where the ranks may meet."""


def read_step(environ: Mapping[str, str]) -> Step | None:
    """The step that srun made this process for, or None where it is no task of srun's."""
    if "SLURM_PROCID" not in environ or not environ.get("SLURM_STEP_ID", "").isdigit():
        return None
    step_id = number(environ, "SLURM_STEP_ID")
    if step_id >= FIRST_SPECIAL_STEP:
        return None
    step = Step(
        rank=number(environ, "SLURM_PROCID"),
        local_rank=number(environ, "SLURM_LOCALID"),
        world_size=number(environ, _first(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
        node_rank=number(environ, "SLURM_NODEID"),
        tasks_per_node=read(environ, _tasks_name(environ), expand_tasks, "a form as '4(x2),3'"),
        nodes=_hosts(environ, _nodes_name(environ)),
        port=meeting_port(number(environ, "SLURM_JOB_ID"), step_id),
    )
    _check(step, environ)
    return None if _is_inherited(step, environ) else step


def _is_inherited(step: Step, environ: Mapping[str, str]) -> bool:
    """Whether these are another step's variables.

    A batch script submitted from within a step inherits them. Its nodes, and the list of tasks on
    this node, are its own.
    """
    tasks_here = environ.get("SLURM_GTIDS", "")
    if tasks_here and len(tasks_here.split(",")) != step.tasks_per_node[step.node_rank]:
        return True
    nodes = "SLURM_JOB_NODELIST"
    return nodes in environ and not set(step.nodes) <= set(_hosts(environ, nodes))


def _check(step: Step, environ: Mapping[str, str]) -> None:
    tasks, nodes = _tasks_name(environ), _nodes_name(environ)
    if sum(step.tasks_per_node) != step.world_size:
        raise UsageError(
            f"{tasks} is '{environ[tasks]}', which is {sum(step.tasks_per_node)} tasks, "
            f"but Slurm counts {step.world_size} in this step"
        )
    if len(step.nodes) != len(step.tasks_per_node):
        raise UsageError(
            f"{nodes} is '{environ[nodes]}', which is {len(step.nodes)} nodes, "
            f"but {tasks} is '{environ[tasks]}', for {len(step.tasks_per_node)}"
        )
    check_below("SLURM_PROCID", step.rank, step.world_size, "tasks")
    check_below("SLURM_NODEID", step.node_rank, len(step.nodes), "nodes")
    n_here = step.tasks_per_node[step.node_rank]
    check_below("SLURM_LOCALID", step.local_rank, n_here, "tasks on this node")


def meeting_port(job_id: int, step_id: int = 0) -> int:
    """A port for the ranks of a step to meet at.

    The same for all of them without a word between them, and another one for each of 15,000 jobs
    in a row: two jobs that share a node do not meet each other.
    """
    return FIRST_PORT + (job_id + STEP_STRIDE * step_id) % N_PORTS


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names that a list in Slurm's short form stands for: `a[01-02],b` is a01, a02, b."""
    parts = _HOST.findall(text)
    if not parts or ",".join(parts) != text:
        raise ValueError(f"'{text}' is no list of hosts")
    return tuple(name for part in parts for name in _expand_host(part))


def _expand_host(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    numbers, _, after = rest.partition("]")
    ends = _expand_host(after)
    return [f"{before}{n}{end}" for n in _expand_numbers(numbers) for end in ends]


def _expand_numbers(text: str) -> list[str]:
    """`01-03,7` is 01, 02, 03, 7: the zeros in front belong to the names."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        numbers += [f"{n:0{width}d}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def expand_tasks(text: str) -> tuple[int, ...]:
    """Tasks on each node from Slurm's short form: `4(x2),3` is 4, 4, 3."""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise ValueError(f"'{text}' is no list of numbers of tasks")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _hosts(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    return read(environ, name, expand_hosts, "a form as 'node[01-03,7],login'")


def _tasks_name(environ: Mapping[str, str]) -> str:
    return _first(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


def _nodes_name(environ: Mapping[str, str]) -> str:
    return _first(environ, "SLURM_STEP_NODELIST", "SLURM_NODELIST")


def _first(environ: Mapping[str, str], of_step: str, general: str) -> str:
    """The step's own variable where there is one: `srun --preserve-env` keeps the other's value."""
    return of_step if of_step in environ else general
