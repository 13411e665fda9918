"""The Profile: what the kernels and operators of some steps were, as `profile.json` holds it.

Seconds, calls, FLOPs and bytes are means over the steps of the window, per step. Unknown is None.
On a device the times are those of its kernels; on a CPU they are the operators' own time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

PROFILE_SCHEMA = 1
PROFILE_FILE = "profile.json"

KernelClass = Literal[
    "matmul", "conv", "attention", "norm", "elementwise", "copy", "collective", "other"
]
CLASSES: tuple[KernelClass, ...] = (
    *("matmul", "conv", "attention", "norm", "elementwise", "copy", "collective", "other"),
)
"""'elementwise' holds reductions and updates of optimizers too: what memory bandwidth limits."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's code, or in a library where none of the user's calls is above it."""

    file: str
    line: int
    function: str
    module: str
    """The name of the innermost nn.Module that was running; empty outside of all."""


@dataclass(frozen=True, slots=True)
class ClassTime:
    name: KernelClass
    seconds: float
    share: float
    """Of the time of all classes."""
    calls: float
    flops: float | None
    bytes: float | None
    """Read and written, as the shapes of the operators' inputs and outputs say."""
    intensity: float | None
    """FLOPs a byte."""
    flops_per_s: float | None
    """In the time of the operators whose cost is known; None where they are the lesser part."""
    bytes_per_s: float | None
    roofline: float | None
    """Share of what the machine's ceilings allow at this intensity."""
    bound: Literal["compute", "memory"] | None
    """Which of the two ceilings is the lower one at this intensity."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Of the device, while no kernel and no copy ran on it."""

    total_s: float
    share: float
    data_s: float
    """The host waited for a batch."""
    sync_s: float
    """The host had waited for the device, and had nothing queued."""
    collective_s: float
    """The host waited for other ranks."""
    launch_s: float
    """The host did not launch fast enough."""


@dataclass(frozen=True, slots=True)
class Communication:
    total_s: float
    exposed_s: float
    """While nothing was computed."""
    hidden_s: float
    calls: float


@dataclass(frozen=True, slots=True)
class SiteShare:
    site: Site
    share: float
    """Of the time of its kernel or operator."""
    is_backward: bool


@dataclass(frozen=True, slots=True)
class TopOp:
    name: str
    """Of the kernel; on a CPU of the operator."""
    operator: str
    """That launched the kernel; on a CPU the same."""
    kind: KernelClass
    seconds: float
    share: float
    calls: float
    sites: tuple[SiteShare, ...]


@dataclass(frozen=True, slots=True)
class Matmul:
    """One shape of matrix product, among those that take the most time."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    seconds: float
    calls: float
    flops_per_s: float | None
    kernel: str
    tiles: int | None
    """Thread blocks' worth of output; None where the kernel's tile is unknown."""
    waves: float | None
    """Tiles over multiprocessors."""
    wave_efficiency: float | None
    """Share of the multiprocessors' time that the last wave leaves in use: 1.0 is none lost."""
    sites: tuple[SiteShare, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """A place where the host waits for the device; on a CPU, where it would."""

    call: str
    """Such as 'aten::item' or 'cudaStreamSynchronize'."""
    site: Site | None
    calls: float
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphBreak:
    file: str
    line: int
    reason: str
    n: int


@dataclass(frozen=True, slots=True)
class Recompile:
    function: str
    file: str
    line: int
    reason: str
    n: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes at the end of a step, but for `activations`: those at the peak."""

    weights: int | None
    buffers: int | None
    gradients: int | None
    optimizer: int | None
    activations: int | None
    """What the peak holds beyond the other categories; None on a CPU, where no allocator tells."""
    fragmentation: int | None
    """Reserved from the device, not in use at the peak, and in pieces beside tensors in use."""
    peak: int | None
    slope: float | None
    """Bytes a step by which memory grows; None where there were too few steps."""
    n_slope_steps: int


@dataclass(frozen=True, slots=True)
class RankProfile:
    rank: int
    host: str
    pid: int
    device: str
    """'cpu', or the name of the device."""
    n_steps: int
    """In the window that the times are from."""
    n_line_steps: int
    """In the window with stacks, that source lines and synchronisations are from."""
    first_step: int | None
    """The first profiled step, counted from 1."""
    step_s: float | None
    """Mean step in the window; the profiler makes it longer than it is without."""
    outside_s: float | None
    """On a CPU: the part of the step in which no operator ran."""
    classes: tuple[ClassTime, ...]
    idle: Idle | None
    communication: Communication | None
    tensor_core_share: float | None
    """Of the time of matmul, conv and attention kernels: in those that use tensor cores."""
    matmul_dtypes: dict[str, float]
    """Seconds a step of matrix products and convolutions, by the type they were computed in."""
    top: tuple[TopOp, ...]
    matmuls: tuple[Matmul, ...]
    syncs: tuple[Sync, ...]
    graph_breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    memory: MemoryUse | None
    trace: str | None
    """The trace for Perfetto, a file beside this one."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankWait:
    rank: int
    step_s: float | None
    collective_s: float
    waiting_s: float
    """In collectives, for ranks that came later."""


@dataclass(frozen=True, slots=True)
class Skew:
    """Collectives that all ranks made together: transfer is what the last rank to come spends."""

    transfer_s: float
    skew_s: float
    """Mean over the ranks of the time spent waiting for others."""
    straggler: int | None
    """The rank that the others wait for; None where they are level."""
    ranks: tuple[RankWait, ...]

    def waiting_share(self, rank: int) -> float:
        """Of a rank's time in collectives: what it waits there for others to come."""
        waits = (one for one in self.ranks if one.rank == rank and one.collective_s)
        return next((one.waiting_s / one.collective_s for one in waits), 0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    run: str
    """The id of the Run it was made with."""
    command: tuple[str, ...]
    hotlap: str
    ranks: tuple[RankProfile, ...]
    skew: Skew | None
    notes: tuple[str, ...]
    schema: int = field(default=PROFILE_SCHEMA)

    def write(self, folder: Path) -> None:
        """Write `profile.json` into a Run's folder, atomically."""
        write_json(folder / PROFILE_FILE, self)

    @staticmethod
    def read(folder: Path) -> Profile:
        """Read the `profile.json` of a Run's folder."""
        path = folder / PROFILE_FILE
        document = read_json(path)
        if not isinstance(document, dict) or document.get("schema") != PROFILE_SCHEMA:
            raise RecordError(f"{path} is no Profile that this hotlap reads")
        try:
            return from_json(Profile, document, "")
        except RecordError as error:
            raise RecordError(f"{path} is damaged: {error}") from None
