"""One prediction: memory and time of a training in one layout."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.intervals import step_interval
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import Bytes, training_memory
from hotlap.planner.offload import HostBytes, host_memory
from hotlap.planner.step import StepTime, step_time
from hotlap.planner.training import Training
from hotlap.planner.work import StepWork, work_of
from hotlap.records.plan import Value


@dataclass(frozen=True, slots=True)
class Scale:
    """What a Run of the same model showed; what it showed of time is in the calibration."""

    memory_bytes: float = 0.0
    """More than predicted."""
    run: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether a Run set it."""
        return bool(self.run)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one layout."""

    layout: Layout
    training: Training
    memory: Bytes
    memory_bytes: float
    """Its total, with what a Run showed beside it."""
    host: HostBytes
    work: StepWork
    time: StepTime
    step_s: float


def predict(
    model: Model,
    gpus: Gpus,
    training: Training,
    layout: Layout,
    by: Calibration,
    scale: Scale,
    memory: Bytes | None = None,
) -> Prediction:
    """Memory, unless it is known already, and time; whether it fits is for the caller to say."""
    memory = memory or training_memory(model, training, layout)
    work = work_of(model, gpus, training, layout)
    time = step_time(work, by)
    step_s = time.total
    if training.data_samples_per_s:
        step_s = max(step_s, training.batch / training.data_samples_per_s)
    return Prediction(
        layout,
        training,
        memory,
        memory.total + scale.memory_bytes,
        host_memory(model, training, layout),
        work,
        time,
        step_s,
    )


def interval_of(one: Prediction, by: Calibration) -> Value:
    """Of its step."""
    plain = step_interval(one.work, by)
    factor = one.step_s / plain.value
    return Value(one.step_s, plain.low * factor, plain.high * factor)


def causes_of(one: Prediction) -> dict[str, float]:
    """Seconds of a step by cause; they add up to it."""
    parts = {
        "products": one.time.products,
        "bandwidth-bound": one.time.streams,
        "communication": one.time.communication,
        "bubble": one.time.bubble,
        "host": one.time.host,
        "offload": one.time.offload,
    }
    if not one.layout.offload and not one.layout.offload_activations:
        del parts["offload"]
    parts["data"] = max(0.0, one.step_s - sum(parts.values()))
    return parts
