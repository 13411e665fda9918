"""Marks to steps, on marks written by hand: what a step is, and whose time is whose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from making import TapeWriter

from hotlap.chronometer import marks
from hotlap.chronometer.collect import collect_ranks
from hotlap.chronometer.marks import Mark
from hotlap.chronometer.period import smallest_period
from hotlap.chronometer.steps import Step, rank_record, split_steps
from hotlap.chronometer.tape import Tape, read_tape
from hotlap.chronometer.validation import find_validation
from hotlap.records import ValidationPass

MARKS_A_STEP = 7


def steps_of(tape: Sequence[Mark]) -> tuple[list[Step], list[str]]:
    return split_steps(tape, find_validation(tape))


def passes_of(tape: Sequence[Mark]) -> list[ValidationPass]:
    return [one for region in find_validation(tape) for one in region.passes()]


def spent(step: Step) -> dict[str, int]:
    """The phases that a step spent time on."""
    return {phase: ns for phase, ns in step.host_ns.items() if ns}


@pytest.fixture
def tape() -> TapeWriter:
    return TapeWriter()


# How many updates make a step.


@pytest.mark.parametrize(
    ("optimizers", "period"),
    [
        ([], 1),
        ([0] * 30, 1),
        ([0, 1] * 10, 2),
        ([0, 1] * 10 + [0], 2),
        ([0, 0, 0, 1] * 8, 4),
        ([0, 1, 2] * 5, 3),
        ([0] * 40 + [1] * 40, 1),
        ([0, 1] * 20 + [0] + [0, 1] * 20, 2),  # one odd update does not hide it
        ([0, 1], 1),
    ],
)
def test_the_period_is_the_shortest_pattern_of_optimizers(
    optimizers: list[int], period: int
) -> None:
    assert smallest_period(optimizers) == period


# Whose time is whose.


def test_a_plain_step_is_split_at_its_marks(tape: TapeWriter) -> None:
    for _ in range(3):
        tape.step()
    steps, notes = steps_of(tape.marks)
    first = {"data": 5, "forward": 22, "backward": 40, "optimizer": 10, "other": 4}
    assert [spent(step) for step in steps] == [first, first | {"other": 8}, first | {"other": 8}]
    assert notes == []


def test_without_a_loader_the_gap_before_a_fresh_input_is_data(tape: TapeWriter) -> None:
    for _ in range(2):
        tape.wait(7)
        tape.forward(20, samples=16)
        tape.backward(40)
        tape.update(10)
    steps, notes = steps_of(tape.marks)
    assert spent(steps[1]) == {"data": 7, "forward": 20, "backward": 40, "optimizer": 10}
    assert steps[1].batches == [16]
    assert any("no DataLoader was seen" in note for note in notes)


def test_a_closure_is_forward_and_backward_and_not_optimizer(tape: TapeWriter) -> None:
    for _ in range(2):
        tape.fetch(5)
        tape.mark(marks.OPTIMIZER_BEGIN)
        tape.wait(1)
        for loss in (4.0, 2.0):
            tape.forward(20)
            tape.wait(2)
            tape.backward(40, loss)
            tape.wait(3)
        tape.mark(marks.OPTIMIZER_END)
    steps, _ = steps_of(tape.marks)
    assert spent(steps[1]) == {"data": 5, "forward": 44, "backward": 80, "optimizer": 7}
    assert [step.loss for step in steps] == [3.0, 3.0]
    assert [step.batches for step in steps] == [[8], [8]]


def test_a_nested_optimizer_step_is_not_a_step_of_its_own(tape: TapeWriter) -> None:
    for _ in range(2):
        tape.fetch(5)
        tape.forward(20)
        tape.backward(40)
        tape.mark(marks.OPTIMIZER_BEGIN, argument=0)
        tape.wait(1)
        tape.update(10, optimizer=1)
        tape.mark(marks.OPTIMIZER_END, argument=0)
    steps, _ = steps_of(tape.marks)
    assert [step.host_ns["optimizer"] for step in steps] == [11, 11]


def test_an_end_without_a_begin_changes_nothing(tape: TapeWriter) -> None:
    tape.mark(marks.FORWARD_END)
    tape.mark(marks.OPTIMIZER_END)
    tape.mark(marks.FETCH_END, argument=1, value=8)
    tape.step()
    steps, _ = steps_of(tape.marks)
    assert [spent(step)["backward"] for step in steps] == [40]


def test_a_begin_without_an_end_is_closed_by_the_scope_around_it(tape: TapeWriter) -> None:
    tape.fetch(5)
    tape.mark(marks.OPTIMIZER_BEGIN)
    tape.mark(marks.FORWARD_BEGIN, marks.GRAD | marks.TRAINING, 1)
    tape.wait(20)
    tape.backward(40)
    tape.mark(marks.OPTIMIZER_END)
    tape.step()
    steps, _ = steps_of(tape.marks)
    assert len(steps) == 2
    assert spent(steps[1])["forward"] == 22


def test_an_update_that_raised_is_no_step(tape: TapeWriter) -> None:
    tape.step()
    tape.fetch(5)
    tape.forward(20)
    tape.backward(40)
    tape.mark(marks.OPTIMIZER_BEGIN)
    tape.wait(9)
    tape.mark(marks.OPTIMIZER_RAISED)
    tape.step()
    steps, _ = steps_of(tape.marks)
    assert len(steps) == 2
    assert spent(steps[1])["optimizer"] == 19


def test_without_an_update_a_step_ends_with_its_backward(tape: TapeWriter) -> None:
    for _ in range(3):
        tape.fetch(5)
        tape.forward(20)
        tape.backward(40)
        tape.wait(3)
    steps, notes = steps_of(tape.marks)
    assert len(steps) == 3
    assert spent(steps[1]) == {"data": 5, "forward": 20, "backward": 40, "other": 3}
    assert any("no optimizer step was seen" in note for note in notes)


# Several backwards or updates in a step.


def test_accumulated_backwards_are_one_step(tape: TapeWriter) -> None:
    for _ in range(2):
        for loss in (1.0, 2.0, 6.0):
            tape.fetch(5)
            tape.forward(20)
            tape.backward(40, loss)
        tape.update(10)
    steps, _ = steps_of(tape.marks)
    assert [spent(step) for step in steps] == [
        {"data": 15, "forward": 60, "backward": 120, "optimizer": 10}
    ] * 2
    assert [(step.loss, step.batches) for step in steps] == [(3.0, [8, 8, 8])] * 2


def test_two_optimizers_fed_by_one_batch_are_one_step(tape: TapeWriter) -> None:
    for _ in range(6):
        tape.fetch(5)
        for optimizer in (0, 1):
            tape.forward(20)
            tape.backward(40, 1.0 + optimizer)
            tape.update(10, optimizer)
    tape.fetch(5)
    tape.forward(20)
    tape.backward(40)
    tape.update(10, 0)  # cut off in the middle of a step
    steps, _ = steps_of(tape.marks)
    assert [spent(step) for step in steps] == [
        {"data": 5, "forward": 40, "backward": 80, "optimizer": 20}
    ] * 6
    assert {(step.loss, *step.batches) for step in steps} == {(1.5, 8)}


def test_one_unknown_loss_makes_the_steps_loss_unknown(tape: TapeWriter) -> None:
    tape.fetch(5)
    tape.backward(40, 1.0)
    tape.backward(40, None)
    tape.update(10)
    steps, notes = steps_of(tape.marks)
    assert [step.loss for step in steps] == [None]
    assert any("loss of some steps is unknown" in note for note in notes)


def test_a_batch_fetched_ahead_counts_for_the_step_that_uses_it(tape: TapeWriter) -> None:
    sizes = [8, 8, 8, 3]
    tape.fetch(5, sizes[0])
    for size in [*sizes[1:], None]:
        tape.fetch(5, size or 0, stop=size is None)
        tape.forward(20)
        tape.backward(40)
        tape.update(10)
    steps, _ = steps_of(tape.marks)
    assert [step.batches for step in steps] == [[8], [8], [8], [3]]


# Samples of a training without a loader: what its modules are given.


def test_samples_are_what_goes_through_with_gradients(tape: TapeWriter) -> None:
    for _ in range(3):
        tape.forward(20, samples=1, grad=False)  # an agent acts
        tape.forward(20, samples=64, grad=False)  # and is told what its acts were worth
        tape.forward(20, samples=128)
        tape.forward(20, samples=128)
        tape.backward(40)
        tape.forward(20, samples=4)  # a look at how it does, of which nothing is learnt
        tape.update(10)
    steps, _ = steps_of(tape.marks)
    assert [step.batches for step in steps] == [[128]] * 3


def test_samples_without_gradients_count_where_there_are_no_others(tape: TapeWriter) -> None:
    for _ in range(3):
        tape.forward(20, samples=16, grad=False)  # features, for a loss without a module
        tape.backward(40)
        tape.update(10)
    tape.forward(20, samples=1, grad=False)
    tape.backward(40)  # of a penalty on the weights
    tape.forward(20, samples=8)
    tape.backward(40)
    tape.update(10)
    steps, _ = steps_of(tape.marks)
    assert [step.batches for step in steps] == [[16], [16], [16], [8]]


def test_gradients_that_came_without_a_backward_are_of_the_samples_given(tape: TapeWriter) -> None:
    for _ in range(2):
        tape.forward(20, samples=16)
        tape.update(10)
    steps, _ = steps_of(tape.marks)
    assert [step.batches for step in steps] == [[16], [16]]


@pytest.mark.parametrize("calls", [[1, 1, 1], [1, 128]])
def test_one_row_after_another_into_one_backward_is_no_known_batch(
    tape: TapeWriter, calls: list[int]
) -> None:
    for _ in range(2):
        for samples in calls:
            tape.forward(20, samples=samples)
        tape.backward(40)
        tape.update(10)
    steps, notes = steps_of(tape.marks)
    assert [step.batches for step in steps] == [[0], [0]]
    assert any("samples of some steps are unknown" in note for note in notes)


# Validation.


def test_a_loader_without_backwards_is_validation(tape: TapeWriter) -> None:
    for epoch in (0, 2):
        for _ in range(3):
            tape.step(serial=epoch + 1)
        tape.scope(marks.ITER_BEGIN, 2, argument=epoch + 2, value=0)
        for _ in range(4):
            tape.fetch(5, serial=epoch + 2)
            tape.evaluate(20)
        tape.fetch(1, serial=epoch + 2, stop=True)
    steps, _ = steps_of(tape.marks)
    assert [(one.total_ns, one.batches) for one in passes_of(tape.marks)] == [(103, 4)] * 2
    assert len(steps) == 6
    assert {step.host_ns["data"] for step in steps} == {5}
    assert max(step.host_ns["other"] for step in steps) == 8


def test_a_validation_loader_left_half_way_is_still_validation(tape: TapeWriter) -> None:
    for serial in (2, 3):
        for _ in range(3):
            tape.step(serial=1)
        for _ in range(2):
            tape.fetch(5, serial=serial)
            tape.evaluate(20)
    for _ in range(3):
        tape.step(serial=1)
    steps, _ = steps_of(tape.marks)
    assert [(one.total_ns, one.batches) for one in passes_of(tape.marks)] == [(50, 2)] * 2
    assert len(steps) == 9
    assert {sum(step.batches) for step in steps} == {8}


def test_a_loss_module_with_gradients_does_not_split_a_validation(tape: TapeWriter) -> None:
    for _ in range(3):
        tape.step(serial=1)
    for _ in range(2):
        tape.fetch(5, serial=2)
        tape.evaluate(20)
        tape.forward(2)  # a loss module: nobody puts that into evaluation mode
    tape.fetch(1, serial=2, stop=True)
    for _ in range(3):
        tape.step(serial=3)
    assert [(one.total_ns, one.batches) for one in passes_of(tape.marks)] == [(55, 2)]
    assert len(steps_of(tape.marks)[0]) == 6


def test_a_teacher_without_gradients_is_part_of_the_step(tape: TapeWriter) -> None:
    for _ in range(4):
        tape.fetch(5)
        tape.evaluate(30)
        tape.forward(20)
        tape.backward(40)
        tape.update(10)
    steps, _ = steps_of(tape.marks)
    assert passes_of(tape.marks) == []
    assert {step.host_ns["forward"] for step in steps} == {50}


def test_validation_without_a_loader_is_told_from_the_steps(tape: TapeWriter) -> None:
    for serial in (1, 2):
        for _ in range(5):
            tape.step(serial=serial)
        for _ in range(3):
            tape.evaluate(30)
    steps, _ = steps_of(tape.marks)
    assert [(one.total_ns, one.batches) for one in passes_of(tape.marks)] == [(90, 3)] * 2
    assert sum(step.host_ns["forward"] for step in steps) == 10 * 22


def test_two_validation_loaders_in_a_row_are_two_passes(tape: TapeWriter) -> None:
    tape.step(serial=1)
    for serial in (2, 3):
        for _ in range(2):
            tape.fetch(5, serial=serial)
            tape.evaluate(20)
        tape.fetch(1, serial=serial, stop=True)
    tape.step(serial=4)
    assert [one.batches for one in passes_of(tape.marks)] == [2, 2]


# What a process that was killed leaves.


def write_files(folder: Path, tape: TapeWriter, **facts: object) -> Path:
    """The files of a measured process that did not come to its end."""
    written = Tape(folder / "host-1.tape")
    for one in tape.marks:
        code = one.kind | one.flags << 8 | one.argument << 16
        written.write([one.host_ns, code, one.value, one.device_ns])
    written.close()
    path = folder / "host-1.facts"
    path.write_text(json.dumps({"host": "host", "pid": 1, **facts}) + '\n{"note": "cut sho')
    return path


def test_a_tape_is_read_back_mark_for_mark(tmp_path: Path, tape: TapeWriter) -> None:
    for _ in range(3):
        tape.step()
    write_files(tmp_path, tape)
    assert list(read_tape(tmp_path / "host-1.tape")) == tape.marks


@pytest.mark.parametrize("kept_marks", [0, 1, 7, 10, 13, 14, 20])
def test_a_truncated_tape_gives_its_whole_steps(
    tmp_path: Path, tape: TapeWriter, kept_marks: int
) -> None:
    for _ in range(3):
        tape.step()
    write_files(tmp_path, tape)
    path = tmp_path / "host-1.tape"
    path.write_bytes(path.read_bytes()[: kept_marks * marks.BYTES + 5])
    (record,), notes = collect_ranks(tmp_path)
    assert len(record.steps.total_ns) == kept_marks // MARKS_A_STEP
    assert (record.ended, notes) == (False, [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank-00000-host-1.json"]


def test_a_tape_that_cannot_be_read_is_noted_and_the_others_are_kept(
    tmp_path: Path, tape: TapeWriter
) -> None:
    tape.step()
    write_files(tmp_path, tape)
    (tmp_path / "host-2.facts").write_text("{}")
    records, notes = collect_ranks(tmp_path)
    assert [len(record.steps.total_ns) for record in records] == [1]
    assert len(notes) == 1
    assert "host-2" in notes[0]


# The device's clock.


def test_device_times_stand_for_the_phases_where_they_are_known(
    tmp_path: Path, tape: TapeWriter
) -> None:
    tape.step()
    tape.device_is_behind_ns = 1_000_000
    tape.step()
    tape.device_is_behind_ns = None
    tape.step()
    facts = write_files(tmp_path, tape, device="a chip")
    steps = rank_record(tape.marks, facts).steps
    assert steps.data_ns == (None, None, None)  # each step starts or ends without the device
    assert steps.total_ns == (81, 85, 85)


def test_a_step_probed_on_the_device_has_its_phases_and_is_marked(
    tmp_path: Path, tape: TapeWriter
) -> None:
    tape.device_is_behind_ns = 1_000_000
    tape.step()
    tape.fetch(5)
    tape.forward(20)
    tape.backward(40)
    tape.update(10, probe=True)
    facts = write_files(tmp_path, tape, device="a chip")
    steps = rank_record(tape.marks, facts).steps
    assert steps.is_probe == (0, 1)
    assert (steps.data_ns, steps.backward_ns) == ((5, 5), (40, 40))
    assert steps.total_ns == (81, 79)
