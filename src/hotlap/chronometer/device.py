"""The device's clock: a CUDA event for every mark, resolved after the device has passed it.

An event is put on the current stream where the host makes a mark; nothing ever waits for it in the
step. At a later step's end, once the device has passed them, the times between events are read and
written beside the host times on the tape. Between the events around a fetch lies just the time
that the device stood idle while the host waited for the batch.

Losses are kept the same way: copied on the device into a ring, brought to the host in blocks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.marks import PENDING
from hotlap.chronometer.power import PowerSampler

if TYPE_CHECKING:
    from hotlap.chronometer.session import Session
    from hotlap.chronometer.tape import Tape

FINISH_TIMEOUT_NS = 10_000_000_000
STEPS_BEHIND = 2
"""Steps left for the device to finish before their events are asked for."""


class DeviceClock:
    """Events and losses of the device that this process trains on."""

    def __init__(self, torch: Any, session: Session) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._record = torch._C._CudaEventBase.record
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._is_capturing = torch._C._cuda_isCurrentStreamCapturing
        self._index = torch.cuda.current_device()
        self._streams: dict[int, Any] = {}
        self._training_stream = self._current_stream(self._index)
        self._spare: list[Any] = []
        self._step: list[tuple[Any, Any, int]] = []
        self._steps: deque[list[tuple[Any, Any, int]]] = deque()
        self._last: Any = None
        self._elapsed_ns = 0.0
        self._losses = LossRing(torch, self._index)
        properties = torch.cuda.get_device_properties(self._index)
        uuid = str(getattr(properties, "uuid", ""))
        if session.facts is not None:
            session.facts.write(
                device=properties.name,
                device_memory_bytes=properties.total_memory,
                device_uuid=uuid,
                device_index=self._index,
            )
            self._power = PowerSampler(session.facts.path, self._index, uuid, session.note)
        self._session = session

    def mark(self, words: Any, place: int) -> None:
        """Put an event where the mark at `place` was made."""
        if self._is_capturing():
            # An event recorded or queried now would become part of the graph, or kill the capture.
            return
        raw = self._current_stream(self._index)
        stream = self._streams.get(raw)
        if stream is None:
            stream = self._streams[raw] = self._cuda.current_stream(self._index)
        self._training_stream = raw
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        self._record(event, stream)
        self._step.append((event, words, place))

    def on_training_stream(self) -> bool:
        """Whether a copy made now holds up the training, or runs beside it on its own stream."""
        return bool(self._current_stream(self._index) == self._training_stream)

    def keep_loss(self, loss: Any, tape: Tape, place: int) -> None:
        """Copy a loss aside on the device; its value reaches the tape some steps later."""
        if not self._is_capturing():
            self._losses.keep(loss, tape, place)

    def step_ended(self) -> None:
        """Read the events of the steps that the device has passed."""
        if self._is_capturing():
            return
        self._steps.append(self._step)
        self._step = []
        while len(self._steps) > STEPS_BEHIND and self._is_done(self._steps[0]):
            self._resolve(self._steps.popleft())
        self._losses.collect()

    @staticmethod
    def _is_done(step: list[tuple[Any, Any, int]]) -> bool:
        return not step or step[-1][0].query()

    def _resolve(self, step: list[tuple[Any, Any, int]]) -> None:
        for event, words, place in step:
            # From event to event, not from the first: elapsed_time is a 32-bit float of ms.
            if self._last is not None:
                self._elapsed_ns += self._last.elapsed_time(event) * 1e6
                self._spare.append(self._last)
            self._last = event
            words[place + 3] = round(self._elapsed_ns) + 1

    def memory(self) -> tuple[int, int]:
        """Peak bytes allocated and reserved."""
        return (
            self._cuda.max_memory_allocated(self._index),
            self._cuda.max_memory_reserved(self._index),
        )

    def finish(self) -> None:
        """Read what is left at the end; a device that hangs is not waited for."""
        self._power.stop()
        self._steps.append(self._step)
        self._step = []
        deadline = now_ns() + FINISH_TIMEOUT_NS
        while self._steps and now_ns() < deadline:
            if self._is_done(self._steps[0]):
                self._resolve(self._steps.popleft())
        self._losses.finish()

    def abandon(self) -> None:
        """In a forked child: CUDA cannot be used, nothing of it may be touched."""


class LossRing:
    """Losses on the device, brought to the host a block at a time."""

    BLOCK = 64

    def __init__(self, torch: Any, index: int) -> None:
        self._torch = torch
        size = 2 * self.BLOCK
        self._ring = torch.zeros(size, dtype=torch.float64, device=f"cuda:{index}")
        self._slots = list(self._ring.unbind())
        self._host = torch.zeros(size, dtype=torch.float64).pin_memory()
        self._arrived = [torch.cuda.Event(), torch.cuda.Event()]
        self._n = 0
        self._places: list[tuple[Any, int]] = []
        self._under_way: deque[tuple[int, list[tuple[Any, int]]]] = deque()

    def keep(self, loss: Any, tape: Tape, place: int) -> None:
        """Copy one loss into the ring."""
        tape.words[place] = PENDING
        self._slots[self._n % len(self._slots)].copy_(loss.detach())
        self._n += 1
        self._places.append((tape.doubles, place))
        if len(self._places) == self.BLOCK:
            self._send()

    def _send(self) -> None:
        # The other half of the ring must have left before new losses are written into it.
        self.collect(wait=bool(self._under_way))
        half = (self._n - 1) // self.BLOCK % 2
        block = slice(half * self.BLOCK, half * self.BLOCK + self.BLOCK)
        self._host[block].copy_(self._ring[block], non_blocking=True)
        self._arrived[half].record()
        self._under_way.append((half, self._places))
        self._places = []

    def collect(self, wait: bool = False) -> None:
        """Write the blocks that have arrived to the tape."""
        while self._under_way:
            half, places = self._under_way[0]
            if not self._arrived[half].query():
                if not wait:
                    return
                self._arrived[half].synchronize()
            start = half * self.BLOCK
            values = self._host[start : start + len(places)].tolist()
            for (doubles, place), value in zip(places, values, strict=True):
                doubles[place] = value
            self._under_way.popleft()

    def finish(self) -> None:
        """Bring in what is left."""
        if self._places:
            self._send()
        self.collect(wait=True)
