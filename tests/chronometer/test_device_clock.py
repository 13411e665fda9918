"""The device clock's book-keeping, on a device whose clock the test moves itself.

What a real GPU does is in tests/gpu; here it is which steps get events, and that every time and
every loss reaches the mark it belongs to.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.chronometer import device, marks
from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.session import Session, Settings
from hotlap.chronometer.tape import read_tape


class FakeDevice:
    """A device that is behind the host by so many events."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.n_recorded = 0


class FakeEvent:
    """An event that the device passes 1 ms after the one before."""

    machine: FakeDevice

    def __init__(self, enable_timing: bool = False) -> None:
        self.place = 0

    def record(self, stream: Any = None) -> None:
        self.machine.n_recorded += 1
        self.place = self.machine.n_recorded

    def query(self) -> bool:
        return self.place <= self.machine.n_recorded - self.machine.behind

    def synchronize(self) -> None:
        self.machine.behind = 0

    def elapsed_time(self, later: FakeEvent) -> float:
        return float(later.place - self.place)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that believes in a device; losses stay plain tensors."""
    cuda = SimpleNamespace(
        Event=FakeEvent,
        current_device=lambda: 0,
        current_stream=lambda index: "stream",
        is_initialized=lambda: True,
        max_memory_allocated=lambda index: 10,
        max_memory_reserved=lambda index: 20,
        get_device_properties=lambda index: SimpleNamespace(name="fake", total_memory=1, uuid="u"),
    )
    c_module = SimpleNamespace(
        _CudaEventBase=SimpleNamespace(record=FakeEvent.record),
        _cuda_getCurrentRawStream=lambda index: 7,
        _cuda_isCurrentStreamCapturing=lambda: False,
    )
    fake = SimpleNamespace(
        cuda=cuda,
        _C=c_module,
        __version__="fake",
        version=SimpleNamespace(cuda="13", hip=None),
        get_num_threads=lambda: 1,
        distributed=SimpleNamespace(is_available=lambda: False),
        OutOfMemoryError=MemoryError,
        Tensor=torch.Tensor,
        no_grad=torch.no_grad,
        stack=torch.stack,
        float64=torch.float64,
        empty=lambda *sizes, pin_memory, **kinds: torch.empty(*sizes, **kinds),
    )
    monkeypatch.setattr(device, "PowerSampler", lambda *arguments: SimpleNamespace(stop=list))
    monkeypatch.setattr(FakeEvent, "machine", FakeDevice(behind=0), raising=False)
    session = Session(fake, Settings(str(tmp_path)))
    assert session.adopt_thread(marks.FETCH_BEGIN)
    device.DeviceClock(fake, session)
    return session


def end_step(session: Session) -> None:
    """As the hook that ends a step does."""
    session.boundaries.append(0)
    session.unprobed_left -= 1
    session.step_ended(now_ns())


def train(session: Session, n_steps: int) -> None:
    """The marks of so many steps, with losses 0, 1, 2, …"""
    for step in range(n_steps):
        for kind in (marks.FORWARD_BEGIN, marks.BACKWARD_BEGIN):
            session.log(kind, marks.NO_LOSS if kind == marks.BACKWARD_BEGIN else 0)
        session.keep_loss(torch.tensor(float(step)))
        session.log(marks.BACKWARD_END)
        session.log(marks.OPTIMIZER_BEGIN)
        session.log(marks.OPTIMIZER_END | session.end_flags)
        end_step(session)


def finished_tape(session: Session) -> list[marks.Mark]:
    assert session.device is not None
    assert session.facts is not None
    session.flush()
    session.device.finish()
    return list(read_tape(session.facts.path.with_suffix(".tape")))


def test_every_step_has_its_events_while_the_host_is_ahead(session: Session) -> None:
    FakeEvent.machine.behind = 4
    train(session, 300)
    FakeEvent.machine.behind = 0
    scopes = [m for m in finished_tape(session) if m.kind <= marks.OPTIMIZER_RAISED]
    assert all(mark.device_ns for mark in scopes)
    # One event a mark, one millisecond apart, and one of its own for each block of losses.
    gaps = [b.device_ns - a.device_ns for a, b in pairwise(scopes)]
    assert gaps.count(2_000_000) == 300 // device.DeviceLosses.BLOCK
    assert gaps.count(1_000_000) == len(gaps) - gaps.count(2_000_000)
    assert not any(m.flags & marks.PROBE for m in scopes if m.kind == marks.OPTIMIZER_END)


def test_a_host_that_waits_for_each_copy_is_ahead_all_the_same(session: Session) -> None:
    """The device passes what lies before the copy, and is behind with all that comes after it."""
    FakeEvent.machine.behind = 4
    for _ in range(100):
        for _ in range(8):
            session.log(marks.TRANSFER_BEGIN)
            session.log(marks.TRANSFER_END)
        train(session, 1)
    FakeEvent.machine.behind = 0
    ends = [m for m in finished_tape(session) if m.kind == marks.OPTIMIZER_END]
    assert len(ends) == 100
    assert all(end.device_ns and not end.flags & marks.PROBE for end in ends)


def test_few_steps_are_probed_while_the_device_waits(session: Session) -> None:
    train(session, 3000)
    scopes = [m for m in finished_tape(session) if m.kind <= marks.OPTIMIZER_RAISED]
    probed = [m for m in scopes if m.kind == marks.FORWARD_BEGIN and m.device_ns]
    ends = [m for m in scopes if m.kind == marks.OPTIMIZER_END]
    assert device.FIRST_STEPS <= len(probed) < 0.1 * len(ends)
    # A probed step is bounded by events on both sides, and says that it is a probe.
    for i, end in enumerate(ends[1:], start=1):
        if all(mark.device_ns for mark in scopes[5 * i : 5 * i + 5]):
            assert ends[i - 1].device_ns
            assert end.flags & marks.PROBE


@pytest.mark.parametrize(("extra_ns", "expected"), [(0, 60), (300_000, 120), (2_000_000, 240)])
def test_probes_are_as_rare_as_they_are_dear(
    session: Session, monkeypatch: pytest.MonkeyPatch, extra_ns: int, expected: int
) -> None:
    """Steps of 1 ms, probed ones longer: a quarter of a percent of the time, but within bounds."""
    time_ns, distances, since = now_ns(), [], 0
    monkeypatch.setattr(device, "now_ns", lambda: time_ns)
    for _ in range(20_000):
        time_ns += 1_000_000 + extra_ns * session.has_events
        was_probed, since = session.has_events, since + 1
        end_step(session)
        if was_probed:
            distances.append(since)
            since = 0
    assert distances[-1] == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("behind", [0, 3])
def test_every_loss_reaches_its_own_backward(session: Session, behind: int) -> None:
    FakeEvent.machine.behind = behind
    train(session, 500)
    tape = finished_tape(session)
    from hotlap.chronometer.steps import split_steps

    steps, _ = split_steps([m for m in tape if m.kind <= marks.OPTIMIZER_RAISED], [])
    assert [step.loss for step in steps] == [float(i) for i in range(500)]


def test_a_loss_changed_in_place_after_its_backward_is_unknown(session: Session) -> None:
    session.log(marks.BACKWARD_BEGIN, marks.PENDING)
    loss = torch.tensor(1.0)
    session.keep_loss(loss)
    loss.add_(1.0)
    (mark,) = [m for m in finished_tape(session) if m.kind == marks.BACKWARD_BEGIN]
    assert mark.value == marks.PENDING


def test_an_error_of_the_device_stops_the_measuring_and_raises_nothing(session: Session) -> None:
    clock = session.device
    assert clock is not None

    def broken() -> bool:
        raise RuntimeError("device-side assert")

    clock._is_capturing = broken
    session.log(marks.FORWARD_BEGIN)
    end_step(session)
    assert session.off
    assert any("device-side assert" in note for note in session.noted)
