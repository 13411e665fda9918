"""The device's clock: CUDA events for the marks of a step, resolved after the device passed them.

An event is put on the current stream where the host makes a mark; nothing ever waits for it in the
step. At a later step's end, once the device has passed them, the times between events are read and
written beside the host times on the tape. Between the events around a fetch lies just the time
that the device stood idle while the host waited for the batch.

An event is cheap for the device and dear for the host: ten of them take a launch-bound step 0.1 ms
longer. So where the device is behind the host, which then has time to spare, every step gets its
events. Where the device waits for the host, steps end for both at the same time, the host's clock
gives their length, and only some steps are probed with events for their phases. The others are
quiet: without the marks that would only split them.

Losses stay on the device, kept by reference, and are brought to the host a block at a time.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.marks import PENDING, PROBE
from hotlap.chronometer.power import PowerSampler

if TYPE_CHECKING:
    from hotlap.chronometer.session import Session

FINISH_TIMEOUT_NS = 10_000_000_000
STEPS_BEHIND = 2
"""Steps left for the device to finish before their events are asked for."""
FIRST_STEPS = 20
"""Steps at the start that all get events, so that a short run has its phases."""
N_OF_UPDATE = 2
"""Events at the end of a step that are of its update."""
PROBE_COST_NS = (150_000, 600_000)
"""What a probed step may cost the host: at least ten events; at most, caches that are cold too."""
PROBE_SHARE = 0.0025
"""The share of a launch-bound training's time that probing may take."""


class DeviceClock:
    """Events and losses of the device that this process trains on."""

    def __init__(self, torch: Any, session: Session) -> None:
        self._cuda = torch.cuda
        self._record = torch._C._CudaEventBase.record
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._is_capturing = torch._C._cuda_isCurrentStreamCapturing
        self._index = torch.cuda.current_device()
        self._streams: dict[int, Any] = {}
        self._training_stream = self._current_stream(self._index)
        assert session.tape is not None
        assert session.facts is not None
        self._session, self._tape, self._buffer = session, session.tape, session.buffer
        self._spare: list[Any] = []
        self._step: list[tuple[Any, int]] = []
        """The events since the last step's end, and the word of the tape that waits for each."""
        self._steps: deque[list[tuple[Any, int]]] = deque()
        self._last: Any = None
        self._elapsed_ns = 0.0
        self._n_ended = 0
        self._n_in_a_row = 0
        self._n_unprobed = 0
        self._last_end_ns = now_ns()
        self._host_is_ahead = False
        self._probe_cost_ns = float(PROBE_COST_NS[0])
        """As it was seen: by how much probed steps are longer than quiet ones."""
        self._quiet_step_ns = 0.0
        """The mean of the last quiet steps; 0 where there are none to compare with."""
        self._losses = DeviceLosses(torch, session)
        properties = torch.cuda.get_device_properties(self._index)
        uuid = str(getattr(properties, "uuid", ""))
        session.facts.write(
            device=properties.name,
            device_memory_bytes=properties.total_memory,
            device_uuid=uuid,
        )
        self._power = PowerSampler(session.facts.path, self._index, uuid, session.note)
        session.device, session.keep_loss = self, self._losses.keep
        session.has_events, session.unprobed_left = True, 0

    def mark(self) -> None:
        """Put an event where the last mark was made."""
        try:
            self._put_event()
        except Exception as error:
            self._session.fault("device clock", error)

    def _put_event(self) -> None:
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
        self._step.append((event, self._tape.n_words + len(self._buffer) - 1))

    def on_training_stream(self) -> bool:
        """Whether a copy made now holds up the training, or runs beside it on its own stream."""
        return bool(self._current_stream(self._index) == self._training_stream)

    def step_ended(self) -> None:
        """Read the events that the device has passed, and say whether the next step gets any."""
        try:
            self._step_ended()
        except Exception as error:
            self._session.fault("device clock", error)

    def _step_ended(self) -> None:
        self._n_ended += 1
        if self._is_capturing():
            return
        now = now_ns()
        if self._session.has_events:
            self._steps.append(self._step)
            self._step = []
            if self._steps[-1]:
                # Where the end of backward still lies before the device, the host is ahead. What
                # comes earlier says nothing: a copy or an `item()` makes the host wait for it.
                backward_end, _ = self._steps[-1][-N_OF_UPDATE - 1 :][0]
                self._host_is_ahead = not backward_end.query()
            while len(self._steps) > STEPS_BEHIND and self._is_done(self._steps[0]):
                self._resolve(self._steps.popleft())
            self._losses.collect()
            self._choose(now - self._last_end_ns)
            self._last_end_ns = now
        else:
            self._quiet_step_ns = (now - self._last_end_ns) / self._n_unprobed
            self._last_end_ns = now
            self._session.be_quiet(False)
            self._session.has_events = True
            self._put_event()  # for the end of this step, where the probed one begins
        is_probe = self._session.has_events and not self._host_is_ahead
        self._session.end_flags = PROBE << 8 if is_probe else 0

    def _choose(self, step_ns: int) -> None:
        """How many steps to leave without events after this one."""
        self._n_in_a_row += 1
        if self._n_unprobed:  # there were quiet steps right before it
            low, high = PROBE_COST_NS
            seen = min(max(step_ns - self._quiet_step_ns, low), high)
            self._probe_cost_ns += (seen - self._probe_cost_ns) / 8
            self._n_unprobed = 0
        if self._host_is_ahead or self._n_ended < FIRST_STEPS:
            self._quiet_step_ns = 0.0
            return
        # Updates of several optimizers make one step together: probe enough of them in a row.
        in_a_row = 1 if len(self._session.optimizers) < 2 else 8
        if self._n_in_a_row >= in_a_row:
            quiet_ns = self._quiet_step_ns or max(step_ns, 1)
            steps = math.ceil(self._probe_cost_ns / (PROBE_SHARE * quiet_ns))
            self._n_unprobed = self._session.unprobed_left = in_a_row * (steps - 1)
            self._session.has_events = self._session.unprobed_left == 0
            self._session.be_quiet(not self._session.has_events)
            self._n_in_a_row = 0

    @staticmethod
    def _is_done(step: list[tuple[Any, int]]) -> bool:
        return not step or step[-1][0].query()

    def _resolve(self, step: list[tuple[Any, int]]) -> None:
        for event, word in step:
            # From event to event, not from the first: elapsed_time is a 32-bit float of ms.
            if self._last is not None:
                self._elapsed_ns += self._last.elapsed_time(event) * 1e6
                self._spare.append(self._last)
            self._last = event
            self._session.amend(word, int(self._elapsed_ns) + 1)

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


class DeviceLosses:
    """Losses that are still on the device, and the words of the tape that wait for them."""

    BLOCK = 64

    def __init__(self, torch: Any, session: Session) -> None:
        self._torch, self._session = torch, session
        assert session.tape is not None
        self._tape = session.tape
        self._is_capturing = torch._C._cuda_isCurrentStreamCapturing
        self._kept: list[tuple[Any, int, int]] = []
        self._under_way: deque[tuple[Any, Any, list[int]]] = deque()

    def keep(self, loss: Any) -> None:
        """Have a loss put into the last mark; its value reaches it some steps later.

        It is kept by reference, or as a copy where its memory may be used again.
        """
        if self._is_capturing():
            return
        session = self._session
        session.buffer[-2] = PENDING
        word = self._tape.n_words + len(session.buffer) - 2
        value = loss.detach()
        if value.dim():
            value = value.reshape(())
        if loss._is_view() or "torch._inductor.cudagraph_trees" in sys.modules:
            value = value.clone()
        if self._kept and self._kept[-1][0].dtype is not value.dtype:
            self._send()
        self._kept.append((value, value._version, word))
        if len(self._kept) >= self.BLOCK:
            self._send()

    def _send(self) -> None:
        """Start the way of the kept losses to the host."""
        # A loss that was changed in place after its backward is not the loss any more.
        kept = [(value, word) for value, version, word in self._kept if value._version == version]
        self._kept = []
        if not kept:
            return
        with self._torch.no_grad():
            block = self._torch.stack([value for value, _ in kept]).double()
            host = self._torch.empty(len(kept), dtype=self._torch.float64, pin_memory=True)
            host.copy_(block, non_blocking=True)
        arrived = self._torch.cuda.Event()
        arrived.record()
        self._under_way.append((arrived, host, [word for _, word in kept]))

    def collect(self, wait: bool = False) -> None:
        """Write the blocks that have arrived to the tape."""
        while self._under_way:
            arrived, host, words = self._under_way[0]
            if not arrived.query():
                if not wait:
                    return
                arrived.synchronize()
            for word, value in zip(words, host.tolist(), strict=True):
                self._session.amend(word, value)
            self._under_way.popleft()

    def finish(self) -> None:
        """Bring in what is left."""
        self._send()
        self.collect(wait=True)
