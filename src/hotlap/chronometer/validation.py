"""Validation: the stretches of a tape that belong to no step.

Nothing in a script says 'validation', so it is told by what happens. A pass over a loader is
training if backwards follow its batches, and validation if only forwards without gradient (or of a
module in evaluation mode) do. Forwards of that kind outside of any loader are validation where
they stand between an update and the next training batch, and not in most of the steps: there they
are a teacher's, and part of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hotlap.chronometer import marks
from hotlap.chronometer.marks import Mark
from hotlap.records.rank import ValidationPass


@dataclass(slots=True)
class Region:
    """A stretch of marks, first to last, without training in it."""

    first: int
    last: int
    tape: Sequence[Mark]
    serials: set[int] = field(default_factory=set)

    def passes(self) -> Iterator[ValidationPass]:
        """One pass for each loader that was gone through, or one in all if there was none."""
        starts = [self.first]
        for serial in sorted(self.serials)[1:]:
            starts.append(self._first_of(serial))
        for start, end in zip(starts, [*starts[1:], self.last], strict=True):
            yield self._pass(start, end)

    def _first_of(self, serial: int) -> int:
        return next(
            i
            for i in range(self.first, self.last + 1)
            if self.tape[i].argument == serial
            and self.tape[i].kind in (marks.ITER_BEGIN, marks.FETCH_BEGIN)
        )

    @staticmethod
    def _length_ns(start: Mark, end: Mark) -> int:
        if start.device_ns and end.device_ns:
            return end.device_ns - start.device_ns
        return end.host_ns - start.host_ns

    def _pass(self, start: int, end: int) -> ValidationPass:
        inside = [self.tape[i] for i in range(start, end + 1)]
        fetched = [m for m in inside if m.kind == marks.FETCH_END and not m.flags & marks.STOP]
        lengths = [m.value for m in inside if m.kind == marks.ITER_END and m.value >= 0]
        return ValidationPass(
            total_ns=self._length_ns(self.tape[start], self.tape[end]),
            batches=len(fetched) or sum(m.kind == marks.FORWARD_BEGIN for m in inside),
            full_batches=lengths[0] if lengths and fetched else None,
        )


def find_validation(tape: Sequence[Mark]) -> list[Region]:
    """The validation on a tape, in order."""
    serials = validation_serials(tape)
    loader_trains = any(
        mark.kind == marks.FETCH_BEGIN and mark.argument not in serials for mark in tape
    )
    free = _free_forwards(tape, serials, loader_trains)
    regions: list[Region] = []
    last_was_validation = False
    for i, mark in enumerate(tape):
        belongs = _belongs(mark, i, serials, free)
        if belongs is None:
            continue
        if belongs and last_was_validation:
            regions[-1].last = i
        elif belongs:
            regions.append(Region(i, i, tape))
        if belongs and mark.kind in (marks.ITER_BEGIN, marks.FETCH_BEGIN):
            regions[-1].serials.add(mark.argument)
        last_was_validation = belongs
    return regions


def _belongs(mark: Mark, i: int, serials: set[int], free: set[int]) -> bool | None:
    """Whether a mark is validation, or training, or neither (None)."""
    if mark.kind in (marks.ITER_BEGIN, marks.ITER_END, marks.FETCH_BEGIN, marks.FETCH_END):
        return mark.argument in serials
    if mark.kind in (marks.FORWARD_BEGIN, marks.FORWARD_END):
        return i in free
    if mark.kind in marks.SCOPES or mark.kind in marks.OPENED_BY:
        return None if mark.kind in (marks.TRANSFER_BEGIN, marks.TRANSFER_END) else False
    return None


def validation_serials(tape: Sequence[Mark]) -> set[int]:
    """The passes over loaders that were validation."""
    votes: dict[int, int] = {}
    open_fetch: dict[int, str] = {}
    for mark in tape:
        if mark.kind == marks.FETCH_BEGIN:
            # What was evaluated by now stays so: a loader left half-way sees no more of its own.
            for serial in [s for s, what in open_fetch.items() if what == "evaluated"]:
                _vote(votes, serial, open_fetch.pop(serial))
            _vote(votes, mark.argument, open_fetch.get(mark.argument))
            open_fetch[mark.argument] = ""
        elif mark.kind == marks.BACKWARD_BEGIN:
            open_fetch = dict.fromkeys(open_fetch, "trained")
        elif mark.kind == marks.FORWARD_BEGIN and is_evaluation(mark):
            open_fetch = {s: what or "evaluated" for s, what in open_fetch.items()}
        elif mark.kind == marks.FETCH_END and mark.flags & marks.STOP:
            _vote(votes, mark.argument, open_fetch.pop(mark.argument, None))
    for serial, what in open_fetch.items():
        _vote(votes, serial, what)
    return {serial for serial, vote in votes.items() if vote < 0}


def _vote(votes: dict[int, int], serial: int, what: str | None) -> None:
    votes[serial] = votes.get(serial, 0) + {"trained": 1, "evaluated": -1}.get(what or "", 0)


def is_evaluation(mark: Mark) -> bool:
    """A forward without gradient, or of a module in evaluation mode."""
    return mark.flags & (marks.GRAD | marks.TRAINING) != marks.GRAD | marks.TRAINING


def _free_forwards(tape: Sequence[Mark], serials: set[int], loader_trains: bool) -> set[int]:
    """Marks of the forwards that are validation: under a validation loader, or between steps."""
    inside_validation, waits_for_batch = False, True
    under_loader: set[int] = set()
    between: list[set[int]] = [set()]
    scope: set[int] | None = None
    doubtful: set[int] = set()
    for i, mark in enumerate(tape):
        if mark.kind == marks.FETCH_BEGIN:
            inside_validation = mark.argument in serials
            waits_for_batch &= inside_validation
            under_loader |= doubtful  # no backward came: they were part of the validation
            doubtful = set()
        elif mark.kind == marks.FETCH_END and mark.flags & marks.STOP:
            inside_validation = False
        elif mark.kind == marks.FORWARD_BEGIN and is_evaluation(mark):
            scope = under_loader if inside_validation else None
            if not inside_validation and (waits_for_batch or not loader_trains):
                scope = between[-1]
            if scope is not None:
                scope.add(i)
        elif mark.kind == marks.FORWARD_BEGIN and inside_validation:
            # With gradients, in training mode: a loss, or training that goes on without a loader.
            doubtful.add(i)
        elif mark.kind == marks.FORWARD_END and scope is not None:
            scope.add(i)
            scope = None
        elif mark.kind == marks.BACKWARD_BEGIN:
            inside_validation = False
            doubtful = set()
        elif mark.kind == marks.OPTIMIZER_END:
            waits_for_batch = True
            between.append(set())
    busy = sum(bool(found) for found in between)
    in_most_steps = busy > 2 and busy > 0.5 * len(between)
    return under_loader if in_most_steps else under_loader.union(*between)
