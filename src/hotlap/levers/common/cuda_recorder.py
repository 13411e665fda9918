"""Recordings as CUDA graphs that share their memory, and what a failed one leaves to be mended."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from hotlap.levers.common.recording import Replay


class CudaRecorder:
    """Makes CUDA graphs on one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream(device)
        self._generator = torch.cuda.default_generators[device.index]
        self._pool: Any = None
        self._graphs: WeakSet[Any] = WeakSet()

    def is_capturing(self) -> bool:
        """A graph within a graph is refused."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def random_state(self) -> Any:
        """Seed and offset."""
        return self._generator.get_state()

    def set_random_state(self, state: Any) -> None:
        """A replay reads them when it is launched, as any kernel does."""
        self._generator.set_state(state)

    def record(self, function: Callable[[], None]) -> Replay:
        """A function's kernels as a graph."""
        graph, random_before = self._torch.cuda.CUDAGraph(), self._generator.clone_state()
        if not self._graphs:
            # A pool that was used and that no graph has any more is refused for another one.
            self._pool = self._torch.cuda.graph_pool_handle()
        collects, has_begun = gc.isenabled(), False
        gc.disable()  # what it gives back may be another recording, which must not go just then
        try:
            with self._capturing(graph, self._stream, self._pool):
                has_begun = True
                function()
        except BaseException:
            if has_begun:
                self._mend(graph, random_before)
            raise
        finally:
            if collects:
                gc.enable()
        self._graphs.add(graph)
        replay: Replay = graph.replay
        return replay

    @contextlib.contextmanager
    def _capturing(self, graph: Any, stream: Any, pool: Any) -> Any:
        cuda = self._torch.cuda
        # Threads of loaders may go on with what this one must not do while it records.
        options = {"stream": stream, "capture_error_mode": "thread_local"}
        with cuda.stream(stream), cuda.graph(graph, pool=pool, **options):
            yield

    def _mend(self, graph: Any, random_before: Any) -> None:
        """What torch leaves as it was in the middle of a recording that failed.

        Each by itself, for versions of torch differ in what they leave.
        """
        of = self._torch._C
        with contextlib.suppress(Exception):  # memory goes on coming from the pool
            before_2_8 = "_cuda_endAllocateCurrentStreamToPool"
            is_named_so = hasattr(of, before_2_8)
            end = getattr(of, before_2_8 if is_named_so else "_cuda_endAllocateToPool")
            end(self._device.index, self._pool)
        with contextlib.suppress(Exception):  # a graph that was not ended gives no pool back
            if not _is_ended(graph):
                of._cuda_releasePool(self._device.index, self._pool)
        try:  # the generator counts what it draws for a graph, for all that were recorded with it
            another = self._torch.cuda.CUDAGraph()
            pool = self._torch.cuda.graph_pool_handle()
            with self._capturing(another, self._torch.cuda.Stream(self._device), pool):
                self._torch.cuda._sleep(1)
        except Exception:
            self._generator.graphsafe_set_state(random_before)


def _is_ended(graph: Any) -> bool:
    try:
        graph.pool()
    except Exception:
        return False
    return True
