"""Operators as the host ran them: nested by time, each with its own time and its class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hotlap.chronometer.profile.classes import operator_class
from hotlap.chronometer.profile.trace import Event, Trace
from hotlap.records.profile import KernelClass

STRUCTURAL: tuple[KernelClass, ...] = ("matmul", "conv", "attention", "norm", "collective")
"""Classes that hold for all that runs below such an operator, but for casts and copies."""


@dataclass(slots=True)
class Operator:
    event: Event
    parent: Operator | None
    kind: KernelClass
    own: float
    """Microseconds, without the operators below."""
    is_around: bool = False
    """Whether operators that do work run below it."""

    @property
    def name(self) -> str:
        return self.event.name

    @property
    def external_id(self) -> Any:
        return self.event.args.get("External id")

    def ancestors(self) -> Iterator[Operator]:
        """This operator and those around it, innermost first."""
        one: Operator | None = self
        while one is not None:
            yield one
            one = one.parent


def nest(trace: Trace) -> list[Operator]:
    """All operators in the steps of the window, with what is around each."""
    found: list[Operator] = []
    by_thread: dict[Any, list[Event]] = {}
    for event in trace.events:
        if event.category == "cpu_op" or _is_collective(event):
            by_thread.setdefault(event.thread, []).append(event)
    for events in by_thread.values():
        found += _nest_thread(events)
    if not trace.marks:
        return found
    begin, end = trace.marks[0], trace.marks[-1]
    return [one for one in found if begin <= one.event.start < end]


def _is_collective(event: Event) -> bool:
    """Backends of torch.distributed mark their work with ranges of this kind."""
    return event.category == "user_annotation" and event.name.startswith(("gloo:", "mpi:"))


def _nest_thread(events: Iterable[Event]) -> Iterator[Operator]:
    stack: list[Operator] = []
    for event in events:
        while stack and event.start >= stack[-1].event.end:
            stack.pop()
        parent = stack[-1] if stack else None
        operator = Operator(event, parent, _kind(event.name, parent), event.duration)
        if parent is not None:
            parent.own -= min(event.duration, max(parent.event.end - event.start, 0.0))
            parent.is_around |= operator_class(event.name) != "other"
        stack.append(operator)
        yield operator


def _kind(name: str, parent: Operator | None) -> KernelClass:
    own = operator_class(name)
    is_cast = own == "copy" and parent is not None and parent.kind != "collective"
    if parent is not None and parent.kind in STRUCTURAL and not is_cast:
        return parent.kind
    return own
