"""Device prefetch: batches are copied to the GPU one ahead, on a stream of their own.

When: the model is on a GPU, workers make the batches, and the step waits for copies. The first
batch of an epoch shows which of its tensors the script moves, and how; from then on the next batch
is fetched early, and the same moves are made beside the computation. The script still gets its
batch on the host: its own `.to` or `.cuda` then finds the copy made. Costs one more batch on the
device. The same values, unless the script changes a batch through numpy before it moves it. What
the training's own process makes is not made early: its random numbers would come before the step's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from hotlap.levers.common.edits import Edit, tell
from hotlap.levers.common.later import report_once
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.loaders import (
    only_with_workers,
    saved_of_copies,
    waits_for_copies,
    with_workers,
)
from hotlap.levers.common.pinning import pin_the_hosts_alone
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

MAX_DEPTH = 4
"""Of lists, tuples and mappings in a batch."""


@dataclass(frozen=True, slots=True)
class Move:
    """How the script moves a tensor of a batch: the call, and where it led."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: Any

    def made_of(self, tensor: Any) -> Any:
        """The same move of another tensor, without waiting for it unless the script wants to."""
        says_itself = "non_blocking" in self.kwargs or any(isinstance(a, bool) for a in self.args)
        extra = {} if says_itself else {"non_blocking": True}
        return self.function(tensor, *self.args, **self.kwargs, **extra)

    def is_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether a call is this one again."""
        return self.function is function and self.args == args and self.kwargs == kwargs


@dataclass(slots=True)
class Copy:
    """A move that was made ahead."""

    move: Move
    version: int
    """Of the tensor on the host: one that was changed since is moved again."""
    result: Any
    event: Any


@dataclass(slots=True)
class Ahead:
    """What is known of one iterator over a loader."""

    tensors: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """By id, the tensors of the batch that the script has: their place in it, and themselves."""
    copies: dict[int, Copy] = field(default_factory=dict)
    """By the same id, the moves of them that were made ahead and not asked for yet."""
    moves: dict[int, Move] = field(default_factory=dict)
    """By place in the batch."""
    next: tuple[Any, dict[int, Copy]] | Exception | None = None
    """The next batch with its copies, or what fetching it raised."""

    def hand_out(self, batch: Any, copies: dict[int, Copy], tensor_type: type) -> None:
        """The script gets a batch. What it did not ask for the last time is not copied again."""
        for unclaimed in self.copies:
            self.moves.pop(self.tensors[unclaimed][0], None)
        self.tensors = {id(t): (i, t) for i, t in enumerate(tensors_in(batch, tensor_type))}
        self.copies = copies


class Prefetcher:
    """Fetches batches one ahead and makes the script's moves of them early."""

    def __init__(self, tensor_type: type, fetch: Callable[[Any], Any], stream: Any) -> None:
        self._tensor_type, self._fetch, self._stream = tensor_type, fetch, stream
        self._aheads: WeakKeyDictionary[Any, Ahead] = WeakKeyDictionary()

    def next_batch(self, iterator: Any) -> Any:
        """What `_next_data` returns or raises, at the call that it belongs to."""
        ahead = self._aheads.get(iterator)
        if ahead is None:
            ahead = self._aheads[iterator] = Ahead()
        made, ahead.next = ahead.next, None
        if isinstance(made, Exception):
            self.forget(iterator)
            try:
                raise made
            finally:
                del made  # it holds this frame, and with it the iterator and its workers
        batch, copies = made if made is not None else (self._fetch(iterator), {})
        ahead.hand_out(batch, copies, self._tensor_type)
        if ahead.moves:
            ahead.next = self._fetch_ahead(iterator, ahead.moves)
        return batch

    def _fetch_ahead(
        self, iterator: Any, moves: dict[int, Move]
    ) -> tuple[Any, dict[int, Copy]] | Exception:
        try:
            batch = self._fetch(iterator)
        except Exception as error:  # StopIteration too: it is the next call's
            return error
        try:
            return batch, self._copies(batch, moves)
        except Exception:  # the device is full: the script's own move will tell, or get through
            return batch, {}

    def _copies(self, batch: Any, moves: dict[int, Move]) -> dict[int, Copy]:
        copies = {}
        for place, tensor in enumerate(tensors_in(batch, self._tensor_type)):
            if place in moves:
                move = moves[place]
                result, event = self._stream.run(move.device, lambda t=tensor, m=move: m.made_of(t))
                copies[id(tensor)] = Copy(move, _version(tensor), result, event)
        return copies

    def move(self, function: Callable[..., Any], tensor: Any, args: Any, kwargs: Any) -> Any:
        """The result of the script's own move, made ahead or made now."""
        ahead = self._ahead_of(tensor)
        others = (*args, *kwargs.values())
        if ahead is None or any(isinstance(one, self._tensor_type) for one in others):
            return function(tensor, *args, **kwargs)
        copy = ahead.copies.get(id(tensor))
        if copy is not None and copy.move.is_call(function, args, kwargs):
            del ahead.copies[id(tensor)]  # a second move of it gives another tensor, as it must
            if copy.version == _version(tensor):
                self._stream.hand_over(copy.result, copy.event)
                return copy.result
        result = function(tensor, *args, **kwargs)
        if self._stream.is_move(tensor, result):
            place = ahead.tensors[id(tensor)][0]
            ahead.moves[place] = Move(function, args, kwargs, result.device)
        return result

    def _ahead_of(self, tensor: Any) -> Ahead | None:
        """The iterator's whose batch a tensor is of, if it is still the last one."""
        for ahead in list(self._aheads.values()):
            if ahead.tensors.get(id(tensor), (0, None))[1] is tensor:
                return ahead
        return None

    def forget(self, iterator: Any) -> None:
        """The iterator begins anew, or has ended."""
        self._aheads.pop(iterator, None)


class CopyStream:
    """A stream on each device for the copies to it."""

    def __init__(self, torch: Any, did: Callable[[str], None]) -> None:
        self._torch, self._did = torch, did
        self._streams: dict[Any, Any] = {}

    def is_move(self, tensor: Any, result: Any) -> bool:
        """Whether a call has copied a tensor from the host to a device."""
        return bool(result.is_cuda and not tensor.is_cuda)

    def run(self, device: Any, function: Callable[[], Any]) -> tuple[Any, Any]:
        """Call a function on the stream; the event says when its work is done."""
        if device not in self._streams:
            self._streams[device] = self._torch.cuda.Stream(device)
        stream = self._streams[device]
        with self._torch.cuda.stream(stream):
            return function(), stream.record_event()

    def hand_over(self, result: Any, event: Any) -> None:
        """Let what follows on the script's stream wait for a copy, and keep its memory."""
        current = self._torch.cuda.current_stream(result.device)
        current.wait_event(event)
        result.record_stream(current)
        self._did("batches are copied to the device one ahead")


def tensors_in(batch: Any, tensor_type: type, depth: int = MAX_DEPTH) -> Iterator[Any]:
    """The tensors of a batch, always in the same order."""
    if isinstance(batch, tensor_type):
        yield batch
    elif depth and isinstance(batch, (list, tuple, Mapping)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part, tensor_type, depth - 1)


def _version(tensor: Any) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else int(tensor._version)


def apply(torch: Any, value: str, process: Process) -> None:
    """Prefetch the batches of all loaders whose tensors the script moves to a GPU."""
    if not (torch.version.cuda or torch.version.hip):
        return

    def pin(kind: type, arguments: dict[str, Any]) -> None:
        # From other memory a copy cannot run beside anything; a forked worker cannot pin any.
        if not arguments["pin_memory"] and not process.is_forked:
            arguments["pin_memory"] = True
            process.did(f"batches of {type(arguments['dataset']).__name__} are pinned")

    pin_the_hosts_alone(torch, process)
    process.on_loader(pin)
    install(torch, process, CopyStream(torch, report_once(process)))


def install(torch: Any, process: Process, stream: Any) -> None:
    """Take the place of what fetches a batch of the workers and of what moves a tensor.

    Not of `__next__` itself: the chronometer sets it anew whenever it marks more or less.
    """
    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    workers_class = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    prefetcher = Prefetcher(torch.Tensor, workers_class._next_data, stream)
    reset = iterator_class._reset

    def begin_anew(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        prefetcher.forget(iterator)  # workers that persist come back with the same iterator
        return reset(iterator, *args, **kwargs)

    process.replace(workers_class, "_next_data", lambda self: prefetcher.next_batch(self))
    process.replace(iterator_class, "_reset", begin_anew)
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)
        process.replace(torch.Tensor, name, _moving(torch, original, process, prefetcher))


def _moving(torch: Any, original: Any, process: Process, prefetcher: Prefetcher) -> Any:
    is_tracing = torch.compiler.is_dynamo_compiling

    @functools.wraps(original)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or not self.is_cpu or process.is_forked:
            return original(self, *args, **kwargs)
        return prefetcher.move(original, self, args, kwargs)

    return move


def applies(workload: Workload) -> Decision:
    """A GPU, loaders with workers, and time that goes into copies or the wait for data."""
    return with_workers(workload, waits_for_copies(workload))


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Told only: it takes a loop around the script's own loop."""
    text = (
        "copy the next batch of this loader with .to(device, non_blocking=True) on a "
        "torch.cuda.Stream() while the model computes"
    )
    return tuple(tell(loader.site, text) for loader in workload.loaders)


LEVER = Lever(
    name="device_prefetch",
    summary="the next batch is copied to the GPU while the model computes",
    changes="nothing",
    risk="safe",
    phases=("transfer", "data"),
    saves=lambda workload: saved_of_copies(workload, transfer=0.7, data=0.1),
    values=lambda workload: ("on",),
    takes=one_of("on"),
    only_with=only_with_workers,
    applies=applies,
    apply=apply,
    edit=edit,
)
