"""Marks, rank files and Runs made by hand, for tests of what is computed from them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hotlap.chronometer import marks
from hotlap.chronometer.marks import Mark
from hotlap.chronometer.merge import Ending, merge
from hotlap.records import PHASES, RankRecord, Run, StepTable, ValidationPass


class TapeWriter:
    """Puts marks on a list as a loop would; times are given in nanoseconds."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self._now = 1_000
        self.device_is_behind_ns: int | None = None
        """Set to have the device's clock in the marks."""

    def mark(self, kind: int, flags: int = 0, argument: int = 0, value: int = 0) -> None:
        """One mark, now."""
        behind = self.device_is_behind_ns
        device_ns = self._now + behind if behind is not None else 0
        self.marks.append(Mark(self._now, kind, flags, argument, value, device_ns))

    def wait(self, ns: int) -> None:
        """Time passes."""
        self._now += ns

    def scope(self, begin: int, ns: int, **begin_and_end: int) -> None:
        """Open a scope, wait, close it."""
        self.mark(begin, **begin_and_end)
        self.wait(ns)
        self.mark(marks.SCOPES[begin], argument=begin_and_end.get("argument", 0))

    def fetch(self, ns: int, samples: int = 8, serial: int = 1, stop: bool = False) -> None:
        self.mark(marks.FETCH_BEGIN, argument=serial)
        self.wait(ns)
        flags = marks.STOP if stop else 0
        self.mark(marks.FETCH_END, flags, serial, -1 if stop else samples)

    def forward(self, ns: int, samples: int = 0, grad: bool = True, training: bool = True) -> None:
        flags = marks.GRAD * grad | marks.TRAINING * training | marks.FRESH * bool(samples)
        self.mark(marks.FORWARD_BEGIN, flags, int(grad), samples << marks.SAMPLES_SHIFT | samples)
        self.wait(ns)
        if not (grad and training):  # a forward that trains has no end mark
            self.mark(marks.FORWARD_END)

    def evaluate(self, ns: int) -> None:
        self.forward(ns, grad=False, training=False)

    def backward(self, ns: int, loss: float | None = 1.0) -> None:
        (bits,) = struct.unpack("=q", struct.pack("=d", loss)) if loss is not None else (None,)
        self.scope(marks.BACKWARD_BEGIN, ns, value=marks.NO_LOSS if bits is None else bits)

    def update(self, ns: int, optimizer: int = 0, probe: bool = False) -> None:
        self.mark(marks.OPTIMIZER_BEGIN, argument=optimizer)
        self.wait(ns)
        self.mark(marks.OPTIMIZER_END, marks.PROBE * probe, optimizer)

    def step(self, serial: int = 1, samples: int = 8, loss: float = 1.0) -> None:
        """data 5, other 1 + 3 + 4 (the 4 fall into the next step), forward 22, backward 40, …"""
        self.fetch(5, samples, serial)
        self.wait(1)
        self.forward(20)
        self.wait(2)
        self.backward(40, loss)
        self.wait(3)
        self.update(10)
        self.wait(4)


def make_table(
    phases_ns: Sequence[dict[str, int] | None],
    totals_ns: Sequence[int] | None = None,
    probes: Sequence[int] = (),
    samples: int | None = 8,
    losses: Sequence[float | None] | None = None,
) -> StepTable:
    """A step table; None in place of a step's phases where they are not known."""
    n = len(phases_ns)
    totals = list(totals_ns or [sum((phases or {}).values()) for phases in phases_ns])
    columns: dict[str, Any] = {
        f"{name}_ns": tuple(phases.get(name, 0) if phases else None for phases in phases_ns)
        for name in PHASES
    }
    return StepTable(
        total_ns=tuple(totals),
        **columns,
        is_probe=tuple(int(i in probes) for i in range(n)),
        end_ns=tuple(sum(totals[: i + 1]) for i in range(n)),
        samples=(samples,) * n,
        loss=tuple(losses if losses is not None else [1.0] * n),
        flops=(100.0,) * n,
    )


def make_rank(
    table: StepTable,
    rank: int = 0,
    world_size: int = 1,
    pid: int = 1,
    notes: tuple[str, ...] = (),
    validations: tuple[ValidationPass, ...] = (),
) -> RankRecord:
    """A rank file's content."""
    return RankRecord(
        rank=rank,
        world_size=world_size,
        host="host",
        pid=pid,
        process={},
        ended=True,
        cut=False,
        out_of_memory=False,
        seen={},
        first_load_ns=None,
        steps=table,
        validations=validations,
        device_peak_bytes=None,
        device_reserved_bytes=None,
        host_peak_bytes=1000 + rank,
        power=(),
        notes=notes,
    )


def merged(ranks: Sequence[RankRecord], warmup: int | None = 0) -> Run:
    """The Run of some rank files."""
    return merge(
        ranks,
        run_id="made-by-hand",
        command=("train.py",),
        started="2026-01-01T00:00:00+00:00",
        machine={},
        ending=Ending("ok", 0, 1.0),
        warmup=warmup,
    )
