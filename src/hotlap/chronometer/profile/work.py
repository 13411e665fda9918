"""What took the time: kernels on a device, operators on a CPU, in one form for all questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotlap.chronometer.profile.classes import kernel_class
from hotlap.chronometer.profile.operators import Operator, nest
from hotlap.chronometer.profile.trace import DEVICE_CATEGORIES, Event, Trace
from hotlap.records.profile import KernelClass


@dataclass(frozen=True, slots=True)
class Work:
    name: str
    kind: KernelClass
    us: float
    event: Event
    operator: Operator | None
    """The one that launched a kernel; on a CPU the operator itself."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a trace that the figures are from."""

    begin: float
    end: float
    n_steps: int
    works: tuple[Work, ...]
    operators: tuple[Operator, ...]
    is_device: bool

    @property
    def step_us(self) -> float:
        return (self.end - self.begin) / self.n_steps if self.n_steps else 0.0


def find_window(trace: Trace) -> Window | None:
    """The works of a trace's steps; None where no step is whole."""
    if trace.n_steps == 0:
        return None
    operators = nest(trace)
    kernels = [event for event in trace.events if event.category in DEVICE_CATEGORIES]
    if kernels:
        return _device_window(trace, operators, kernels)
    works = tuple(Work(one.name, one.kind, max(one.own, 0.0), one.event, one) for one in operators)
    return Window(
        trace.marks[0], trace.marks[-1], trace.n_steps, works, tuple(operators), is_device=False
    )


def _device_window(trace: Trace, operators: list[Operator], kernels: list[Event]) -> Window | None:
    """From the end of the first step's kernels: before them the device had waited for us.

    A kernel belongs to the step in which the host launched it, whenever it ran.
    """
    launches = launch_times(trace)
    marks = trace.marks[1:] if trace.n_steps > 1 else trace.marks
    mine = [
        event
        for event in kernels
        if marks[0] <= launches.get(event.args.get("correlation"), event.start) < marks[-1]
    ]
    if not mine:
        return None
    by_id = {one.external_id: one for one in operators}
    works = tuple(_work(event, by_id.get(event.args.get("External id"))) for event in mine)
    first, end = min(event.start for event in mine), max(event.end for event in mine)
    before = [
        event.end
        for event in kernels
        if launches.get(event.args.get("correlation"), event.start) < marks[0]
    ]
    begin = min(first, max(before, default=marks[0]))
    in_window = tuple(one for one in operators if marks[0] <= one.event.start < marks[-1])
    return Window(begin, end, len(marks) - 1, works, in_window, is_device=True)


def _work(event: Event, operator: Operator | None) -> Work:
    if event.category == "kernel":
        kind = kernel_class(event.name, operator.kind if operator else None)
    else:
        kind = "copy"
    return Work(event.name, kind, event.duration, event, operator)


def launch_times(trace: Trace) -> dict[Any, float]:
    """When the host launched what, by correlation id."""
    return {
        event.args["correlation"]: event.start
        for event in trace.events
        if event.category in ("cuda_runtime", "cuda_driver") and "correlation" in event.args
    }
