"""Marks to steps: pure functions over what one process wrote.

    read_tape -> [Mark]   what happened, on the host's clock and, where it was asked, the device's
    find_validation       which stretches belong to no step
    split_steps           cut at the updates, give each stretch of time to a phase

Time is exclusive: a stretch between two marks belongs to the innermost open scope, so that a
forward and a backward run by an optimizer's closure count as what they are, and the phases of a
step add up to the step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

from hotlap.chronometer import marks
from hotlap.chronometer.facts import read_facts
from hotlap.chronometer.marks import Mark
from hotlap.chronometer.period import smallest_period
from hotlap.chronometer.power import read_power
from hotlap.chronometer.tape import read_tape
from hotlap.chronometer.validation import Region, find_validation
from hotlap.records.rank import RankRecord, StepTable
from hotlap.records.run import PHASES

PROCESS_MARKERS = ("python", "torch")
"""Empty files in the Run's folder that say how far hotlap got into the command's processes."""

DATA_IS_INFERRED = (
    "no DataLoader was seen: 'data' is the time from the end of a step to its first module call, "
    "whatever the loop does there"
)

_SEEN = {
    marks.FETCH_BEGIN: "batches from a DataLoader",
    marks.FORWARD_BEGIN: "module calls",
    marks.BACKWARD_BEGIN: "backwards",
    marks.OPTIMIZER_BEGIN: "optimizer steps",
}

_SCOPE_PHASE = {
    marks.ITER_BEGIN: "data",
    marks.FETCH_BEGIN: "data",
    marks.TRANSFER_BEGIN: "transfer",
    marks.BACKWARD_BEGIN: "backward",
    marks.OPTIMIZER_BEGIN: "optimizer",
}


Interval = tuple[int, "int | None"]
"""Nanoseconds between two marks on the host's clock, and on the device's where it is known."""


@dataclass(slots=True)
class Step:
    """One step as it is put together."""

    host_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    device_ns: dict[str, int] | None = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    """None once a mark was met that the device's clock does not know."""
    end_host_ns: int = 0
    is_probe: bool = False
    is_profiled: bool = False
    batches: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    """Samples that modules were given before each backward, by a call with gradients."""
    other_inputs: list[int] = field(default_factory=list)
    """Before those backwards that had no such call."""
    losses: list[float | None] = field(default_factory=list)
    grad_losses: list[float | None] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)

    def add(self, phase: str, ns: Interval) -> None:
        """Spend time on a phase."""
        host, device = ns
        self.host_ns[phase] += host
        if device is None:
            self.device_ns = None
        elif self.device_ns is not None:
            self.device_ns[phase] += device

    @property
    def loss(self) -> float | None:
        """Mean of the values that backward was called on; a mean of one is the value itself."""
        values = self.losses or self.grad_losses
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return known[0] if len(known) == 1 else sum(known) / len(known)


@dataclass(slots=True)
class _Stretch:
    """Time in no scope, forwards included: its phase is settled by what comes after."""

    ns: Interval
    otherwise: str


class _Call(NamedTuple):
    """A module call from the loop."""

    place: int
    """Where in the open stretches it began."""
    module: int
    samples: int
    has_gradients: bool


def fold_rank(facts_path: Path) -> None:
    """Turn the files of a measured process into its rank file."""
    replace_by_rank_file(facts_path, read_rank(facts_path))


def read_rank(facts_path: Path) -> RankRecord:
    """What the files of a measured process say."""
    return rank_record(list(read_tape(facts_path.with_suffix(".tape"))), facts_path)


def replace_by_rank_file(facts_path: Path, record: RankRecord) -> None:
    """Write the rank file, then remove what it was made from."""
    record.write(facts_path.parent)
    for suffix in (".tape", ".power", ".facts"):
        facts_path.with_suffix(suffix).unlink(missing_ok=True)


def rank_record(tape: list[Mark], facts_path: Path) -> RankRecord:
    """The rank file's content."""
    facts, notes = read_facts(facts_path)
    scopes = [mark for mark in tape if mark.kind <= marks.OPTIMIZER_RAISED]
    regions = find_validation(scopes)
    steps, step_notes = split_steps(scopes, regions)
    by_device = "device" in facts
    flops, flop_notes = step_flops(steps, facts.get("flops"))
    if facts.get("rank", 0):
        flop_notes = []  # counted by rank 0 for all
    kinds = [mark.kind for mark in tape]
    known = ("python", "torch", "cuda", "hip", "threads", "device", "device_memory_bytes")
    return RankRecord(
        rank=facts.get("rank", 0),
        world_size=facts.get("world_size", 1),
        host=facts.get("host", ""),
        pid=facts.get("pid", 0),
        process={key: facts[key] for key in (*known, "device_uuid") if key in facts},
        ended=marks.ENDED in kinds,
        cut=marks.CUT in kinds,
        out_of_memory=bool(facts.get("out_of_memory", False)),
        seen=_seen(kinds),
        first_load_ns=_first_load(steps, scopes),
        steps=_table(steps, flops, by_device),
        validations=tuple(p for region in regions for p in region.passes()),
        device_peak_bytes=_greatest(tape, marks.DEVICE_PEAK),
        device_reserved_bytes=_greatest(tape, marks.DEVICE_RESERVED),
        host_peak_bytes=_greatest(tape, marks.HOST_PEAK),
        power=read_power(facts_path),
        notes=tuple(dict.fromkeys([*notes, *step_notes, *flop_notes])),
    )


def split_steps(tape: Sequence[Mark], regions: Sequence[Region]) -> tuple[list[Step], list[str]]:
    """The steps of a tape, and what has to be said about them."""
    training = {mark.argument for mark in tape if mark.kind == marks.FETCH_BEGIN}
    training -= {serial for region in regions for serial in region.serials}
    has_loader = bool(training)
    splitter = _Splitter(data_is_inferred=not has_loader, boundaries=_boundary_kind(tape))
    region_at = {i for region in regions for i in range(region.first, region.last)}
    inside = {i for region in regions for i in range(region.first, region.last + 1)}
    before: Mark | None = None
    for i, mark in enumerate(tape):
        if before is not None and i - 1 not in region_at:
            splitter.spend(interval(before, mark))
        if i not in inside:
            splitter.meet(mark)
            before = mark
        elif before is not None:
            before = mark
    updates = splitter.updates
    period = smallest_period([index for index, _ in updates])
    steps = [
        _join([step for _, step in updates[k : k + period]])
        for k in range(0, len(updates) - period + 1, period)
    ]
    _count_samples(steps, has_loader)
    return steps, splitter.notes(has_loader, steps)


def interval(start: Mark, end: Mark) -> Interval:
    """The time between two marks."""
    known = start.device_ns and end.device_ns
    return end.host_ns - start.host_ns, end.device_ns - start.device_ns if known else None


def _boundary_kind(tape: Sequence[Mark]) -> int:
    """What ends a step: the update, or the backward where no update is seen outside of one."""
    depth = 0
    for mark in tape:
        if mark.kind == marks.BACKWARD_BEGIN:
            depth += 1
        elif mark.kind == marks.BACKWARD_END:
            depth = max(0, depth - 1)
        elif mark.kind == marks.OPTIMIZER_END and not depth:
            return marks.OPTIMIZER_END
    return marks.BACKWARD_END


class _Splitter:
    """Walks the marks and gives every stretch of time to a phase."""

    def __init__(self, data_is_inferred: bool, boundaries: int) -> None:
        self._data_is_inferred = data_is_inferred
        self._boundary_kind = boundaries
        self._scopes: list[int] = []
        self._step = Step()
        self._open: list[_Stretch] = []
        self._last_fetch = 0
        """Where in `_open` the last fetch or transfer ended."""
        self._forwards: list[_Call] = []
        """Since the last backward."""
        self._input_is_fresh = False
        self.updates: list[tuple[int, Step]] = []
        self._inferred_ns = 0
        self._without_module = 0
        self._nothing_told = 0

    def spend(self, ns: Interval) -> None:
        """Time has passed since the mark before."""
        scope = self._scopes[-1] if self._scopes else None
        if scope is None:
            self._open.append(_Stretch(ns, "other"))
        elif scope == marks.OPTIMIZER_BEGIN and self._forwards:
            self._open.append(_Stretch(ns, "optimizer"))
        else:
            self._step.add(_SCOPE_PHASE[scope], ns)

    def meet(self, mark: Mark) -> None:
        """A mark opens or closes a scope."""
        kind = mark.kind
        if kind == marks.FORWARD_BEGIN:
            self._call_module(mark)
        elif kind in _SCOPE_PHASE:
            if kind == marks.BACKWARD_BEGIN:
                self._start_backward(mark)
            self._scopes.append(kind)
        elif kind in marks.OPENED_BY:
            self._leave(mark)
        elif kind == marks.OPTIMIZER_RAISED:
            self._scopes = [s for s in self._scopes if s != marks.OPTIMIZER_BEGIN]
            # The update that these losses were for was not made.
            self._step.losses, self._step.grad_losses = [], []

    def _call_module(self, mark: Mark) -> None:
        samples, elements = marks.unpack_input(mark.value)
        has_gradients = bool(mark.flags & marks.GRAD)
        if has_gradients:
            self._step.calls.append((mark.argument, elements))
        if not self._forwards:
            self._input_is_fresh = bool(mark.flags & marks.FRESH)
        self._forwards.append(_Call(len(self._open), mark.argument, samples, has_gradients))

    def _start_backward(self, mark: Mark) -> None:
        self._settle_inputs()
        self._settle_forward()
        losses = self._step.grad_losses if mark.flags & marks.GRAD else self._step.losses
        losses.append(_loss(mark.value))

    def _leave(self, mark: Mark) -> None:
        begin = marks.OPENED_BY[mark.kind]
        if begin not in self._scopes:
            return
        while self._scopes.pop() != begin:
            pass
        if mark.kind == marks.FETCH_END:
            self._last_fetch = len(self._open)
            if not mark.flags & marks.STOP:
                self._step.batches.append(mark.value)
        elif mark.kind == marks.BACKWARD_END and mark.flags & marks.STOP:
            (self._step.losses or self._step.grad_losses or [None]).pop()
            return
        elif mark.kind == marks.TRANSFER_END and not self._forwards:
            self._last_fetch = len(self._open)
        if mark.kind == self._boundary_kind and self._is_outermost(begin):
            self._end_update(mark)

    def _is_outermost(self, begin: int) -> bool:
        return begin not in self._scopes and marks.BACKWARD_BEGIN not in self._scopes

    def _settle_inputs(self) -> None:
        """What goes through a module without gradients is not learnt from: an agent acts so."""
        # A closure is called again and again on one batch; else each forward has its own.
        in_closure = marks.OPTIMIZER_BEGIN in self._scopes
        if in_closure and (self._step.inputs or self._step.other_inputs):
            return
        learnt = [call for call in self._forwards if call.has_gradients]
        if learnt:
            self._step.inputs.append(_samples_of(learnt))
        elif self._forwards:
            self._step.other_inputs.append(self._forwards[0].samples)

    def _settle_forward(self) -> None:
        """A backward starts: what ran since the batch came was its forward.

        From the first module call after the last fetch on, or, in a loop that calls no module, all
        of it. What lies before is not forward: a metric updated after the last step, or the wait
        for a generator.
        """
        places = [call.place for call in self._forwards]
        after_fetch = [place for place in places if place >= self._last_fetch]
        start = (after_fetch or places or [self._last_fetch])[0]
        if not self._forwards:
            self._without_module += 1
            if self._boundary_kind == marks.BACKWARD_END and not self._step.batches:
                start = len(self._open)  # from backward to backward: nothing tells a forward apart
                self._nothing_told += 1
        for i, stretch in enumerate(self._open):
            if i >= start:
                self._step.add("forward", stretch.ns)
            elif self._data_is_inferred and self._input_is_fresh:
                self._step.add("data", stretch.ns)
                self._inferred_ns += stretch.ns[0]
            else:
                self._step.add(stretch.otherwise, stretch.ns)
        self._open, self._forwards, self._last_fetch = [], [], 0

    def _end_update(self, mark: Mark) -> None:
        if not (self._step.inputs or self._step.other_inputs):
            self._settle_inputs()  # no backward was seen: gradients came another way
        for stretch in self._open:
            self._step.add(stretch.otherwise, stretch.ns)
        self._open, self._forwards, self._last_fetch = [], [], 0
        self._step.end_host_ns = mark.host_ns
        self._step.is_probe = bool(mark.flags & marks.PROBE)
        self._step.is_profiled = bool(mark.flags & marks.PROFILED) and (
            mark.kind == marks.OPTIMIZER_END  # a flag of BACKWARD_END means something else
        )
        self.updates.append((mark.argument, self._step))
        self._step = Step()

    def notes(self, has_loader: bool, steps: list[Step]) -> list[str]:
        """What was not seen, and why."""
        notes: list[str] = []
        if not steps:
            return notes
        if self._boundary_kind == marks.BACKWARD_END:
            notes.append(
                "no optimizer step was seen: a step here ends with its backward; an update that is "
                "written by hand, or compiled into one function with the step, is in 'other'"
            )
        if self._inferred_ns:
            notes.append(DATA_IS_INFERRED)
        if self._nothing_told:
            notes.append("neither a loader nor a module call was seen: only 'backward' can be told")
        elif self._without_module:
            notes.append(
                "no module call was seen before some backwards: 'forward' there is all the time "
                "from the batch to the backward"
            )
            if not has_loader:
                notes.append("'data' could not be told from 'forward': there was no loader either")
        if any(_samples(step) is None for step in steps):
            notes.append(
                "the samples of some steps are unknown: neither a loader's batches nor what the "
                "model is given tell how many there were"
            )
        if any(step.loss is None for step in steps):
            notes.append(
                "the loss of some steps is unknown: backward did not start from one number, or the "
                "process ended before its device handed the loss over"
            )
        return notes


def _samples_of(calls: list[_Call]) -> int:
    """Of the calls before one backward, 0 where it is unknown.

    All but the first are taken to be on the same batch. A single row that one module is called on
    again and again is none: those are the states of an episode, or the words of a sentence.
    """
    first = calls[0]
    if first.samples == 1 and any(call.module == first.module for call in calls[1:]):
        return 0
    return first.samples


def _loss(value: int) -> float | None:
    if value in (marks.PENDING, marks.NO_LOSS):
        return None
    loss: float = struct.unpack("=d", struct.pack("=q", value))[0]
    return loss


def _join(parts: list[Step]) -> Step:
    """Several updates that make one step."""
    joined = Step()
    for part in parts:
        for phase, ns in part.host_ns.items():
            joined.add(phase, (ns, part.device_ns[phase] if part.device_ns else None))
        joined.is_probe |= part.is_probe
        joined.is_profiled |= part.is_profiled
        joined.end_host_ns = part.end_host_ns
        joined.batches += part.batches
        joined.losses += part.losses
        joined.grad_losses += part.grad_losses
        joined.calls += part.calls
    # A second optimizer's forward runs on the same batch: only the first one's input is new.
    joined.inputs, joined.other_inputs = parts[0].inputs, parts[0].other_inputs
    return joined


def _count_samples(steps: list[Step], has_loader: bool) -> None:
    """Give each step the batches that it used, which some loops fetch a step ahead."""
    if not has_loader:
        for step in steps:
            step.batches = step.inputs or step.other_inputs
        return
    if not steps:
        return
    per_step = median_low([len(step.batches) for step in steps])
    waiting: list[int] = []
    for step in steps:
        waiting += step.batches
        step.batches, waiting = waiting[:per_step], waiting[per_step:]


def step_flops(
    steps: list[Step], counted: dict[str, dict[str, Any]] | None
) -> tuple[list[float | None], list[str]]:
    """FLOPs of each step, None where a module's are unknown."""
    if not steps:
        return [], []
    if counted is None:
        return [None] * len(steps), ["FLOPs are unknown: the process was ended before the count"]
    called = {str(index) for step in steps for index, _ in step.calls}
    errors = [counted[i]["error"] for i in sorted(called & counted.keys()) if "error" in counted[i]]
    if errors:
        return [None] * len(steps), [f"FLOPs are unknown: {errors[0]}"]
    if not called:
        return [None] * len(steps), ["FLOPs are unknown: no module call was seen in the steps"]
    if not called <= counted.keys():
        return [None] * len(steps), ["FLOPs are unknown: too many different modules are called"]
    scaled = False
    flops: list[float | None] = []
    for step in steps:
        total = 0.0
        for index, elements in step.calls:
            entry = counted[str(index)]
            ratio = elements / entry["elements"] if entry["elements"] and elements else 1.0
            scaled |= ratio != 1.0 and entry["flops"] > 0
            total += entry["flops"] * ratio
        flops.append(total)
    if not any(flops):
        return [None] * len(steps), ["FLOPs are unknown: the modules called hold no matmul"]
    note = "batches differ in size: FLOPs are those of the first one, scaled by their elements"
    return flops, [note] if scaled else []


def _table(steps: list[Step], flops: list[float | None], by_device: bool) -> StepTable:
    """On a device: phases where its clock was asked, lengths from its clock or from the host's."""
    phases = [step.device_ns if by_device else step.host_ns for step in steps]
    totals = [sum((ns or step.host_ns).values()) for ns, step in zip(phases, steps, strict=True)]
    columns: dict[str, Any] = {
        f"{phase}_ns": tuple(
            ns[phase] if ns and not step.is_profiled else None
            for ns, step in zip(phases, steps, strict=True)
        )
        for phase in PHASES
    }
    return StepTable(
        total_ns=tuple(totals),
        **columns,
        is_probe=tuple(int(step.is_profiled or (by_device and step.is_probe)) for step in steps),
        end_ns=tuple(step.end_host_ns for step in steps),
        samples=tuple(_samples(step) for step in steps),
        loss=tuple(step.loss for step in steps),
        flops=tuple(flops),
    )


def _first_load(steps: list[Step], tape: Sequence[Mark]) -> int | None:
    """How long the first batch took, loader start-up included; only a loader shows that."""
    if not steps or not any(mark.kind == marks.FETCH_BEGIN for mark in tape):
        return None
    return steps[0].host_ns["data"]


def _samples(step: Step) -> int | None:
    if step.batches and all(n > 0 for n in step.batches):
        return sum(step.batches)
    return None


def _seen(kinds: list[int]) -> dict[str, int]:
    return {name: kinds.count(kind) for kind, name in _SEEN.items()}


def seen_by(records: Sequence[RankRecord], folder: Path) -> dict[str, int]:
    """What all processes of a command were seen to do."""
    seen = {name: int((folder / f".{name}").exists()) for name in PROCESS_MARKERS}
    seen |= dict.fromkeys(_SEEN.values(), 0)
    for record in records:
        for name, n in record.seen.items():
            seen[name] = seen.get(name, 0) + n
    return seen


def _greatest(tape: list[Mark], kind: int) -> int | None:
    return max((mark.value for mark in tape if mark.kind == kind), default=None)
