"""How this process was started, and how it joins the others.

`detect` reads the variables that launchers leave. What stands nearest to the process is believed
first, so that torchrun inside srun gives torchrun's ranks and not the one Slurm gave torchrun:

    torchrun          RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
    mpi               OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, PMI_*
    srun              SLURM_PROCID and others, where this is a step of srun's: see slurm_step.py
    alone             none of these

`start` brings the ranks together, and nothing of it is written into the environment. For a library
that looks there itself, `complete_environment` gives the variables that are missing.

    launch = detect(os.environ)
    with start(launch, timeout_s=600) as started:
        train(started.device)
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Literal

import torch
import torch.distributed as dist

from hotlap.distributed.slurm_step import Step, expand_hosts, meeting_port, read_step
from hotlap.distributed.variables import check_below, number, read, require
from hotlap.errors import UsageError
from hotlap.wording import n_of

Source = Literal["alone", "torchrun", "srun", "torchrun in srun", "mpi"]
DeviceKind = Literal["auto", "cpu", "cuda"]

LOOPBACK = "127.0.0.1"
TORCH_PORT = 29_500
"""torch's own choice where nobody names a port."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""With a GPU both: gradients go over NCCL, checkpoints and small facts need no GPU."""

_OF_A_WORLD = (
    "COMM_WORLD_RANK",
    "COMM_WORLD_SIZE",
    "COMM_WORLD_LOCAL_RANK",
    "COMM_WORLD_LOCAL_SIZE",
)
_MPI_VARIABLES = (
    tuple(f"OMPI_{name}" for name in _OF_A_WORLD),
    tuple(f"MV2_{name}" for name in _OF_A_WORLD),
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Of Open MPI, MVAPICH and two that speak PMI: rank, world size, and the same on the node."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Which of how many processes this one is, and where they meet."""

    rank: int
    local_rank: int
    """Among the ranks on this node."""
    world_size: int
    local_world_size: int
    """Ranks on this node; other nodes may have more or fewer."""
    n_nodes: int
    node_rank: int
    master_addr: str
    master_port: int
    source: Source
    reason: str
    """One sentence: what was seen that says so."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A Launch before the ranks have a place to meet."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    n_nodes: int
    node_rank: int
    source: Source
    reason: str
    nodes: Sequence[str] = ()
    """Names, as far as they are known; rank 0 runs on the first."""
    port: int = TORCH_PORT


def resolves(host: str) -> bool:
    """Whether this machine finds an address for a name."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def detect(environ: Mapping[str, str], resolves: Callable[[str], bool] = resolves) -> Launch:
    """Say from the environment how this process was started.

    Variables that are set by half, contradict each other or are no numbers are a UsageError: a
    guess would train something else than was asked for, or wait for ranks that never come.
    """
    place = _find_place(environ)
    _refuse_contradictions(place, environ)
    return Launch(
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        local_world_size=place.local_world_size,
        n_nodes=place.n_nodes,
        node_rank=place.node_rank,
        master_addr=_master_addr(place, environ, resolves),
        master_port=_master_port(place, environ),
        source=place.source,
        reason=place.reason,
    )


def complete_environment(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables torch knows a rank by, without those that a launcher has set."""
    wanted = {
        "RANK": launch.rank,
        "WORLD_SIZE": launch.world_size,
        "LOCAL_RANK": launch.local_rank,
        "LOCAL_WORLD_SIZE": launch.local_world_size,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": launch.master_port,
    }
    return {name: str(value) for name, value in wanted.items() if name not in environ}


def _find_place(environ: Mapping[str, str]) -> _Place:
    step = read_step(environ)
    if "RANK" in environ:
        is_set_by_hand = "TORCHELASTIC_RUN_ID" not in environ
        if step and is_set_by_hand and _agrees(step, environ, "RANK", "WORLD_SIZE"):
            return _from_srun(step)
        return _from_torchrun(environ, step)
    mpi = _mpi_variables(environ)
    # srun itself can set PMI_RANK, then of its own ranks; mpirun counts the ranks it starts anew.
    if mpi and not (step and _agrees(step, environ, mpi[0], mpi[1])):
        return _from_mpi(environ, mpi)
    return _from_srun(step) if step else _alone(environ)


def _agrees(step: Step, environ: Mapping[str, str], rank: str, world_size: str) -> bool:
    require(environ, rank, world_size)
    return (step.rank, step.world_size) == (number(environ, rank), number(environ, world_size))


def _from_torchrun(environ: Mapping[str, str], step: Step | None) -> _Place:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    # A process that is the only one needs no word about its place on the node.
    is_only_one = environ.get("WORLD_SIZE") == "1"
    known = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **environ} if is_only_one else environ
    numbers = _four_numbers(known, names)
    n_nodes, node_rank = _nodes_if_filled_in_order(*numbers)
    if "GROUP_WORLD_SIZE" in environ:
        n_nodes, node_rank = number(environ, "GROUP_WORLD_SIZE"), number(environ, "GROUP_RANK")
        check_below("GROUP_RANK", node_rank, n_nodes, "groups (GROUP_WORLD_SIZE)")
    return _Place(
        *numbers,
        n_nodes=n_nodes,
        node_rank=node_rank,
        source="torchrun in srun" if step else "torchrun",
        reason="RANK and WORLD_SIZE are set, as torchrun does"
        + (f"; SLURM_PROCID={step.rank} is the rank of torchrun itself" if step else ""),
        nodes=step.nodes if step else (),
        port=step.port if step else TORCH_PORT,
    )


def _from_mpi(environ: Mapping[str, str], names: tuple[str, ...]) -> _Place:
    numbers = _four_numbers(environ, names)
    n_nodes, node_rank = _nodes_if_filled_in_order(*numbers)
    nodes: Sequence[str] = ()
    port = TORCH_PORT
    if "SLURM_JOB_ID" in environ:
        port = meeting_port(number(environ, "SLURM_JOB_ID"))
    # mpirun begins with the first node of an allocation, unless it was told to use one alone.
    if n_nodes > 1 and "SLURM_JOB_NODELIST" in environ:
        nodes = read(environ, "SLURM_JOB_NODELIST", expand_hosts, "a list of nodes")
    return _Place(
        *numbers,
        n_nodes=n_nodes,
        node_rank=node_rank,
        source="mpi",
        reason=f"{names[0]} and {names[1]} are set, as mpirun does",
        nodes=nodes,
        port=port,
    )


def _from_srun(step: Step) -> _Place:
    n_here = step.tasks_per_node[step.node_rank]
    return _Place(
        *(step.rank, step.local_rank, step.world_size, n_here),
        n_nodes=len(step.nodes),
        node_rank=step.node_rank,
        source="srun",
        reason=f"it is rank {step.rank} of the {step.world_size} tasks that srun has started",
        nodes=step.nodes,
        port=step.port,
    )


def _alone(environ: Mapping[str, str]) -> _Place:
    reason = "no launcher has left its variables"
    if "SLURM_JOB_ID" in environ:
        n_tasks = environ.get("SLURM_NTASKS", "1")
        reason = (
            f"it runs in the allocation of Slurm's job {environ['SLURM_JOB_ID']}, but srun did "
            f"not start it, so it is one process (srun would start {n_tasks})"
        )
    return _Place(0, 0, 1, 1, n_nodes=1, node_rank=0, source="alone", reason=reason)


def _mpi_variables(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names that this MPI uses; the complete ones where two share a name."""
    begun = [names for names in _MPI_VARIABLES if names[0] in environ]
    complete = [names for names in begun if all(name in environ for name in names)]
    return next(iter([*complete, *begun]), None)


def _four_numbers(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[int, int, int, int]:
    """Rank, local rank, world size, local world size, checked against each other."""
    require(environ, *names)
    rank, world_size, local_rank, local_world_size = (number(environ, name) for name in names)
    check_below(names[0], rank, world_size, f"ranks ({names[1]})")
    check_below(names[2], local_rank, local_world_size, f"ranks on this node ({names[3]})")
    if local_world_size > world_size:
        raise UsageError(
            f"{names[3]} is {local_world_size}, which is more than all ranks: "
            f"{names[1]} is {world_size}"
        )
    return rank, local_rank, world_size, local_world_size


def _nodes_if_filled_in_order(
    rank: int, local_rank: int, world_size: int, local_world_size: int
) -> tuple[int, int]:
    """Number of nodes and which of them this is, where ranks fill one node after another."""
    return -(-world_size // local_world_size), (rank - local_rank) // local_world_size


def _refuse_contradictions(place: _Place, environ: Mapping[str, str]) -> None:
    found = {
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_world_size,
    }
    for name, value in found.items():
        if name in environ and number(environ, name) != value:
            half_set = "" if "RANK" in environ else "RANK is not set, and "
            raise UsageError(
                f"{name} is {environ[name]}, but {half_set}{place.reason}: "
                f"unset it or set it to {value}"
            )


def _master_addr(place: _Place, environ: Mapping[str, str], resolves: Callable[[str], bool]) -> str:
    if "MASTER_ADDR" in environ:
        return environ["MASTER_ADDR"]
    first = place.nodes[0] if place.nodes else ""
    if first and resolves(first):
        return first
    if place.n_nodes == 1:
        return LOOPBACK
    why = f"the first node's name, {first}, does not resolve" if first else "nothing names them"
    raise UsageError(
        f"MASTER_ADDR is not set, the ranks are on {place.n_nodes} nodes and {why}: "
        "set it to an address of rank 0 that all nodes reach"
    )


def _master_port(place: _Place, environ: Mapping[str, str]) -> int:
    if "MASTER_PORT" not in environ:
        return place.port
    port = number(environ, "MASTER_PORT")
    if not 0 < port < 65_536:
        raise UsageError(f"MASTER_PORT is {port}; a port is 1 to 65535")
    return port


@dataclass(frozen=True, slots=True)
class Started:
    """What `start` made; leaving its `with` block is `finish`."""

    launch: Launch
    device: torch.device
    """Of this rank."""
    store: dist.Store | None = None
    """Where the ranks met, for what else they have to say; None without a process group, which a
    lone process has only where it is asked for."""

    @property
    def is_group(self) -> bool:
        """Whether there is a process group."""
        return self.store is not None

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        finish()


def start(
    launch: Launch,
    timeout_s: float,
    backend: str | None = None,
    *,
    device: DeviceKind = "auto",
    always: bool = False,
) -> Started:
    """Choose this rank's device and bring the ranks together.

    `timeout_s` bounds the meeting and each collective after it. A lone process needs no group and
    gets none, except with `always`.
    """
    own = _choose_device(device, launch)
    if launch.world_size == 1 and not always:
        return Started(launch, own)
    timeout = timedelta(seconds=timeout_s)
    store = _meet(launch, timeout)
    if own.type == "cuda":
        _refuse_shared_gpu(store, launch, own)
    dist.init_process_group(
        backend or BACKENDS[own.type],
        store=dist.PrefixStore("group", store),
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timeout,
        device_id=own if own.type == "cuda" else None,
    )
    return Started(launch, own, store)


def finish() -> None:
    """Leave the group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _choose_device(kind: DeviceKind, launch: Launch) -> torch.device:
    n_visible = torch.cuda.device_count()
    if kind == "cpu" or (kind == "auto" and not n_visible):
        return torch.device("cpu")
    if not n_visible:
        raise UsageError("device is 'cuda', but torch sees no GPU here; 'cpu' would run")
    # A launcher may show each rank its own GPUs only, and they count from zero again.
    device = torch.device("cuda", launch.local_rank % n_visible)
    torch.cuda.set_device(device)
    return device


def _meet(launch: Launch, timeout: timedelta) -> dist.Store:
    """The store through which the ranks find each other."""
    if launch.world_size == 1:
        return dist.HashStore()
    address = launch.master_addr
    host = f"[{address}]" if ":" in address else address
    url = f"tcp://{host}:{launch.master_port}"
    try:
        rendezvous = dist.rendezvous(url, launch.rank, launch.world_size, timeout=timeout)
        store, _, _ = next(rendezvous)
    except dist.DistError as error:
        raise UsageError(
            f"rank {launch.rank} did not meet all {launch.world_size} ranks at {address} port "
            f"{launch.master_port} within {timeout.total_seconds():g} s; if the port is another "
            f"program's, set MASTER_PORT ({str(error).splitlines()[0]})"
        ) from error
    return store


def _refuse_shared_gpu(store: dist.Store, launch: Launch, device: torch.device) -> None:
    """Two ranks on one GPU halve its speed, and NCCL refuses them with less clear words.

    Only the GPUs' own names tell: ranks that see one GPU each may see the same one.
    """
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    node = dist.PrefixStore(f"gpu of node {launch.node_rank}", store)
    node.set(str(launch.local_rank), gpu)
    for other in range(launch.local_world_size):
        if other != launch.local_rank and node.get(str(other)).decode() == gpu:
            raise UsageError(
                f"local ranks {launch.local_rank} and {other} share one GPU: there are "
                f"{launch.local_world_size} ranks on this node, and this one sees "
                f"{n_of(torch.cuda.device_count(), 'GPU')}; start one rank a GPU, or choose "
                "device 'cpu'"
            )
