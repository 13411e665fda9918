"""A Run beside a prediction: compare them, or let the Run calibrate the prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotlap.errors import UsageError
from hotlap.machine.chips import find_chip
from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import KINDS, Gpus
from hotlap.planner.paces import paced
from hotlap.planner.plan import Question, best, make_plan
from hotlap.planner.predict import Scale
from hotlap.records.plan import Plan
from hotlap.records.run import Run


@dataclass(frozen=True, slots=True)
class Check:
    """One quantity, predicted and measured."""

    name: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low <= self.measured <= self.high


def as_measured(asked: Question, run: Run) -> Question:
    """The question whose answer the Run measured: its number of GPUs and its batch."""
    if run.step_s is None or run.samples_per_s is None:
        raise UsageError(f"Run {run.id} has no step or no samples/s; measure it again")
    n_gpus = run.world_size or 1
    batch = round(run.samples_per_s * run.step_s.mean)
    if batch < 1:
        raise UsageError(f"Run {run.id} has no samples a step; measure it again")
    _check_kind(asked.gpus, run)
    gpus = replace(asked.gpus, n=n_gpus)
    is_same = n_gpus == asked.gpus.n
    layout = asked.layout if is_same else None
    micro = asked.training.micro_batch if is_same else 1
    if batch % n_gpus == 0 and layout is None:
        micro = batch // n_gpus
    training = replace(asked.training, batch=batch, micro_batch=micro)
    return replace(
        asked, gpus=gpus, training=training, layout=layout, micro_batch=micro, total_samples=None
    )


def _check_kind(gpus: Gpus, run: Run) -> None:
    process = run.machine.get("process") or {}
    name = process.get("device")
    if not name:
        raise UsageError(f"Run {run.id} was not measured on a GPU; the planner is for GPUs")
    chip = find_chip(name, process.get("device_memory_bytes"))
    if chip is None or chip.name != KINDS[gpus.kind].chip:
        raise UsageError(
            f"Run {run.id} was measured on {name}; --gpu is {gpus.kind}: name the same kind"
        )


def check(asked: Question, run: Run) -> tuple[Plan, tuple[Check, ...]]:
    """The plan of what the Run did, and how far it is off."""
    plan = make_plan(as_measured(asked, run))
    rows = []
    if run.step_s is not None:
        step = plan.step_s
        rows.append(Check("step s", step.value, step.low, step.high, run.step_s.mean))
    if run.samples_per_s is not None:
        rate = plan.samples_per_s
        rows.append(Check("samples/s", rate.value, rate.low, rate.high, run.samples_per_s))
    if run.memory.device_peak_bytes:
        total = plan.memory["total"]
        # As `Bytes.unseen`.
        unseen = plan.memory["context"].value + plan.memory["fragmentation"].value
        rows.append(
            Check(
                "peak bytes",
                total.value - unseen,
                total.low - unseen,
                total.high - unseen,
                float(run.memory.device_peak_bytes),
            )
        )
    if run.flops.mfu is not None:
        mfu = plan.mfu
        rows.append(Check("MFU", mfu.value, mfu.low, mfu.high, run.flops.mfu))
    return plan, tuple(rows)


def calibrated(asked: Question, run: Run) -> Question:
    """The question with what the Run showed of memory and time; it is like it but for its size."""
    one = best(as_measured(asked, run))
    assert run.step_s is not None  # or it would not have been as measured
    by = paced(one.work, asked.by, run.step_s.mean)
    peak, seen = run.memory.device_peak_bytes, one.memory.total - one.memory.unseen
    more = peak - seen if peak else 0.0
    said = f"Run {run.id}: {_said_of(by)}"
    return replace(asked, by=by, scale=Scale(more, run.id), assumptions=(*asked.assumptions, said))


def _said_of(by: Calibration) -> str:
    if by.gpu_pace == by.host_pace:
        return f"GPU and host take {by.gpu_pace:.2f} times as long as planned"
    if by.host_pace == 1.0:
        return (
            f"the GPU takes {by.gpu_pace:.2f} times as long as planned; of its host it says nothing"
        )
    return (
        f"its step waits for the host, which takes {by.host_pace:.2f} times as long as planned; of "
        "the GPU it says nothing"
    )
