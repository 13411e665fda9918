"""The Plan: predicted memory, time, energy and cost of a training on a cluster, with intervals.

Intervals hold nine of ten measurements. Unknown is None: days without a number of tokens, CO2
without the grid's intensity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, read_json, write_json

PLAN_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Value:
    """A prediction and its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PlannedModel:
    name: str
    parameters: int
    active_parameters: int
    """That one token meets; fewer than all in a model with experts."""
    blocks: int
    unit: str
    """What a batch counts: sequences, images."""
    tokens_per_sample: int
    flops_per_sample: float
    """Forward and backward, 2 a multiply-add, attention in full."""


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    gpu: str
    gpus: int
    gpus_per_node: int
    interconnect_gb_per_s: float
    memory_bytes: int
    peak_flops_per_s: float
    """Dense, at the precision of the training."""
    power_w: float | None
    profile: str = ""
    """Of `hotlap clusters`, where the GPUs come from one."""
    profile_gpu: str = ""
    """What it calls them."""


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    batch: int
    micro_batch: int
    micro_batches: int
    """A step, of each replica."""
    precision: str
    optimizer: str
    recompute: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another layout, and why it lost."""

    layout: str
    micro_batch: int
    recompute: str
    step_s: float | None
    memory_bytes: float
    fits: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The same training on another number of GPUs."""

    gpus: int
    layout: str
    samples_per_s: float
    low: float
    """Of the 90 % interval of samples_per_s."""
    high: float
    efficiency: float
    """Samples a GPU and second, against the point where that is best."""
    gpu_hours: float | None
    days: float | None
    is_efficient: bool


@dataclass(frozen=True, slots=True)
class Plan:
    model: PlannedModel
    cluster: PlannedCluster
    training: PlannedTraining
    layout: str
    memory: dict[str, Value]
    """Bytes of the rank that needs most: `total` and its categories."""
    evaluation_memory: dict[str, Value]
    memory_limit_bytes: float
    """The GPU's memory less the margin."""
    margin: float
    fits: bool
    largest_micro_batch: int
    step_s: Value
    causes_s: dict[str, float]
    """Of a step, by cause; they add up to its value."""
    collectives: dict[str, int]
    """A step, of a rank of the first stage, by kind."""
    samples_per_s: Value
    tokens_per_s: Value | None
    mfu: Value
    hfu: Value
    total_samples: float | None
    total_flops: float | None
    """Of the whole training, without recomputation."""
    goodput: float | None
    days: Value | None
    gpu_hours: Value | None
    energy_kwh: Value | None
    co2_kg: Value | None
    price: Value | None
    calibrated_by: str
    """The Run that set the scale; empty where none did."""
    alternatives: tuple[Alternative, ...]
    scaling: tuple[ScalingPoint, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    calibrated_by_machine: str = ""
    """What a measured Machine set; empty where none did."""
    charge: Value | None = None
    """What the cluster counts for the whole training, in its own unit."""
    charge_unit: str = ""
    host_memory: dict[str, Value] = field(default_factory=dict)
    """Bytes beside one GPU of what is offloaded: `total`, `optimizer`, `activations`."""
    host_limit_bytes: float | None = None
    """Of a node's own memory; None where it is not known."""
    schema: int = field(default=PLAN_SCHEMA)

    def write(self, path: Path) -> None:
        """Write it, atomically."""
        write_json(path, self)

    @staticmethod
    def read(path: Path) -> Plan:
        """Read a plan that was written."""
        document = read_json(path)
        if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
            raise RecordError(f"{path} is no plan that this hotlap reads")
        return from_json(Plan, document, "")
