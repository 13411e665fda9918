"""A job for Slurm, before and after it is sent.

Rights       which accounts and QoS a user has
Ask          what a user wants: so many GPUs for so long
Resources    what Slurm is asked for so that they get it
JobRequest   all that the job's script is made from
Job          a job that was sent, as `job.json` keeps it beside its script
QueuedJob    a job in Slurm's queue, as it says itself
Efficiency   what a job made of what it had
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

JOB_SCHEMA = 1
JOB_FILE = "job.json"

Launcher = Literal["gpu", "node", "once"]
"""One task a GPU; one a node (torchrun and its like); the command once, without srun."""


@dataclass(frozen=True, slots=True)
class Association:
    account: str
    partition: str
    """Empty where it holds for all."""
    qos: tuple[str, ...]
    default_qos: str


@dataclass(frozen=True, slots=True)
class Rights:
    associations: tuple[Association, ...]
    default_account: str = ""
    """What Slurm takes where a job names none."""


@dataclass(frozen=True, slots=True)
class Ask:
    gpus: int
    hours: float
    gpu: str | None = None
    """A kind: 'h100', or 'v100-32gb'."""
    gpus_per_node: int | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    constraint: str | None = None
    launcher: Launcher = "gpu"


@dataclass(frozen=True, slots=True)
class Resources:
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    cpus_per_task: int
    hours: float
    gres: str = "gpu"
    memory_gb: int | None = None
    """Of a node; None leaves it to the cluster."""
    partition: str | None = None
    constraint: str | None = None
    account: str | None = None
    qos: str | None = None
    billed_gpus: int = 0
    """All of the nodes, where a job has whole ones."""
    charge_per_gpu_hour: float | None = None
    unit: str | None = None

    @property
    def gpus(self) -> int:
        """In all."""
        return self.nodes * self.gpus_per_node

    @property
    def gpu_hours(self) -> float:
        """Those that are paid if the job runs to its limit."""
        return self.billed_gpus * self.hours

    @property
    def charge(self) -> float | None:
        """In the site's own unit."""
        rate = self.charge_per_gpu_hour
        return None if rate is None else self.gpu_hours * rate


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's command finds when it starts."""

    modules: tuple[str, ...] = ()
    conda: str | None = None
    venv: str | None = None
    container: str | None = None
    """The path of an image."""
    container_program: str = "apptainer"
    container_gpu: str = "--nv"
    """The option that shows it the GPUs: `--rocm` on AMD's."""
    binds: tuple[str, ...] = ()
    """Folders that a container sees besides the working folder."""
    hint: str | None = None
    master_suffix: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Requeue:
    before_s: int = 180
    """How long before its limit the command is asked to leave."""
    max_attempts: int = 50
    hooks: str = ""
    """A folder in front of PYTHONPATH, by which workers of data live until the command leaves."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    name: str
    command: tuple[str, ...]
    folder: str
    """Where its script and logs are; absolute."""
    cwd: str
    """Where the command runs; absolute."""
    resources: Resources
    surroundings: Surroundings = field(default_factory=Surroundings)
    launcher: Launcher = "gpu"
    before: tuple[str, ...] = ()
    """Words in front of the launcher: `hotlap tune …`."""
    array: str | None = None
    after: str | None = None
    """Slurm's form of a dependency: 'afterok:12'."""
    mail: str | None = None
    directives: tuple[str, ...] = ()
    """Further options of sbatch's, as '--exclusive'."""
    requeue: Requeue | None = None


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    request: JobRequest
    submitted: str
    cluster: str
    schema: int = JOB_SCHEMA

    def write(self) -> None:
        """Write it beside its script."""
        write_json(Path(self.request.folder) / JOB_FILE, self)

    @staticmethod
    def read(folder: Path) -> Job:
        """Read that of a folder."""
        path = folder / JOB_FILE
        try:
            return from_json(Job, read_json(path), "")
        except RecordError as error:
            raise RecordError(f"{path} is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class QueuedJob:
    id: str
    name: str
    state: str
    """Slurm's word: 'PENDING'."""
    reason: str
    partition: str
    qos: str
    nodes: int
    gpus: int
    """In all."""
    elapsed_h: float
    limit_h: float | None
    start: str | None
    """When it began, or when Slurm thinks it will."""
    priority: int
    factors: dict[str, int] = field(default_factory=dict)
    """What the priority of a waiting job is made of."""

    @property
    def gpu_hours(self) -> float:
        """Used so far."""
        return self.gpus * self.elapsed_h


@dataclass(frozen=True, slots=True)
class Efficiency:
    job: str
    name: str
    state: str
    """Of its last attempt, as Slurm says it."""
    attempts: int
    gpus: int
    cores: int
    elapsed_h: float
    """Of all attempts."""
    limit_h: float | None
    """Of one attempt."""
    core_use: float | None
    """Of the cores that it had, the share that computed."""
    memory_gb: float | None
    """The most that one task had."""
    node_energy_kwh: float | None
    """Of its nodes, where the cluster measures that."""
    runs: tuple[str, ...] = ()
    """Ids of its Runs, oldest first."""
    data_wait: float | None = None
    """The share of its steps that waited for data."""
    gpu_use: float | None = None
    """The share of the job's time in which its GPUs trained, and did not wait for data."""
    mfu: float | None = None
    gpu_energy_kwh: float | None = None
    gpu_mean_w: float | None = None
    """Of its GPUs together."""
    notes: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float:
        """That it took."""
        return self.gpus * self.elapsed_h

    @property
    def wasted_gpu_hours(self) -> float | None:
        """In which its GPUs did not train."""
        return None if self.gpu_use is None else self.gpu_hours * (1 - self.gpu_use)
