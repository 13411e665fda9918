"""A call of a model as two recordings, forward and backward, which are replayed.

    inputs      are copied into the memory that was recorded
    results     are copies: they live on when the next call overwrites what was recorded
    gradients   are copies too, and reach the parameters by autograd's own way, hooks and all

A recording computes nothing. It is made with stand-ins for the parameters, which share their
memory: the nodes of autograd that lead to the parameters themselves belong to the stream of the
steps before.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any

from hotlap.levers.common.unchanged import PLAIN

Replay = Callable[[], None]
Record = Callable[[Callable[[], Sequence[Any]]], tuple[Sequence[Any], Replay]]
"""Calls a function once, recording its kernels instead of running them: the tensors that it gives,
and what fills them."""


def cuda_recorder(torch: Any, device: Any) -> Record:
    """Recordings as CUDA graphs that share their memory."""
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
    generator = torch.cuda.default_generators[device.index]

    def record(function: Callable[[], Sequence[Any]]) -> tuple[Sequence[Any], Replay]:
        graph, random_before = torch.cuda.CUDAGraph(), generator.clone_state()
        # Threads of loaders may go on with what this one must not do while it records.
        options = {"stream": stream, "capture_error_mode": "thread_local"}
        try:
            with torch.cuda.stream(stream), torch.cuda.graph(graph, pool=pool, **options):
                tensors = function()
        except BaseException:
            # torch leaves both in the middle of a recording when it fails.
            generator.graphsafe_set_state(random_before)
            with contextlib.suppress(Exception):
                torch._C._cuda_endAllocateToPool(device.index, pool)
            raise
        return tensors, graph.replay

    return record


class Turn:
    """One replay: alive as long as its backward may still come."""

    __slots__ = ("__weakref__", "is_done")

    def __init__(self) -> None:
        self.is_done = False


class Stage:
    """Whose turn it is: all recordings of a model share their memory."""

    def __init__(self) -> None:
        self._last: Callable[[], Turn | None] = lambda: None

    @property
    def is_open(self) -> bool:
        """Whether a backward is still to come that needs what the last replay has left."""
        last = self._last()
        return last is not None and not last.is_done

    def enter(self) -> Turn:
        """A new turn."""
        turn = Turn()
        self._last = weakref.ref(turn)
        return turn

    def is_on(self, turn: Turn) -> bool:
        """Whether no other turn came since."""
        return self._last() is turn


class Recording:
    """A call of one kind: the memory that its replays read and write, and the replays."""

    def __init__(
        self, torch: Any, model: Any, stage: Stage, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._torch, self._model, self._stage = torch, model, stage
        self._function = _replayed(torch)
        leaves = [
            _double(one.clone()) if isinstance(one, torch.Tensor) else one
            for one in (*args, *kwargs.values())
        ]
        self._args = tuple(leaves[: len(args)])
        self._kwargs = dict(zip(kwargs, leaves[len(args) :], strict=True))
        tensors = [(i, one) for i, one in enumerate(leaves) if isinstance(one, torch.Tensor)]
        self._inputs = [(place, one.detach()) for place, one in tensors]
        parameters = dict(model.named_parameters())
        self._stand_ins = {name: _double(one) for name, one in parameters.items()}
        sources = [*tensors, *zip(parameters.values(), self._stand_ins.values(), strict=True)]
        self._sources = [(one, double) for one, double in sources if double.requires_grad]
        """What gradients are computed for: a parameter, or the place of an input; its double."""

    def make(self, outputs: Set[int], sources: Set[int], record: Record) -> None:
        """Record both ways: gradients come to these results, and go to these sources at least."""
        torch = self._torch
        is_tensor = torch.is_tensor
        self._reached = sorted(outputs)

        def forward() -> list[Any]:
            call = torch.func.functional_call
            result = call(self._model, self._stand_ins, self._args, self._kwargs)
            self._outputs, self._structure = torch.utils._pytree.tree_flatten(result)
            self._is_one = is_tensor(result)
            return [one for one in self._outputs if is_tensor(one)]

        def backward() -> list[Any]:
            return torch.autograd.grad(  # type: ignore[no-any-return]
                [self._outputs[place] for place in self._reached],
                [double for _, double in self._sources],
                self._arriving,
                allow_unused=True,
                retain_graph=True,  # so that a second backward finds what it needs
            )

        torch.clear_autocast_cache()  # what is in it was not computed by what is recorded
        _, self._forward = record(forward)
        torch.clear_autocast_cache()
        self._arriving = [torch.empty_like(self._outputs[place]) for place in self._reached]
        with torch.autocast(self._sources[0][1].device.type, enabled=False):
            gradients, self._backward = record(backward)
        if any(gradients[place] is None for place in sources):
            raise RuntimeError("gradients do not come by way of the parameters")
        self._gradients = [one for one in gradients if one is not None]
        pairs = zip(self._sources, gradients, strict=True)
        reached = [source for source, gradient in pairs if gradient is not None]
        self._wanted = [one for one, _ in reached]
        leads_to = {place: _leaves_behind(self._outputs[place]) for place in self._reached}
        self._leads_to = {
            place: {i for i, (_, double) in enumerate(reached) if id(double) in leaves}
            for place, leaves in leads_to.items()
        }
        tensors = [(place, one) for place, one in enumerate(self._outputs) if is_tensor(one)]
        self._constants = [i for i, (_, one) in enumerate(tensors) if not one.requires_grad]
        self._tensors = [(place, one.detach()) for place, one in tensors]
        self._others = [
            one if type(one) in PLAIN else None if is_tensor(one) else NotReplayed(one)
            for one in self._outputs
        ]
        del self._outputs  # and with it the graph of autograd; the memory of both ways stays

    def play(self, *args: Any, **kwargs: Any) -> Any:
        """The call with these arguments."""
        leaves = (*args, *kwargs.values())
        for place, recorded in self._inputs:
            recorded.copy_(leaves[place].detach())
        sources = [leaves[one] if type(one) is int else one for one in self._wanted]
        results = self._function.apply(self, *sources)
        if self._is_one:
            return results[0]
        outputs = list(self._others)
        for (place, _), result in zip(self._tensors, results, strict=True):
            outputs[place] = result
        return self._torch.utils._pytree.tree_unflatten(outputs, self._structure)

    def forward(self, context: Any) -> tuple[Any, ...]:
        """Replay forward; copies of what it gives."""
        context.turn = self._stage.enter()
        self._forward()
        results = tuple([one.clone() for _, one in self._tensors])
        if self._constants:
            context.mark_non_differentiable(*(results[i] for i in self._constants))
        return results

    def backward(self, turn: Turn, arrived: Sequence[Any]) -> list[Any]:
        """Replay backward; copies of the gradients that it gives."""
        if not self._stage.is_on(turn):
            raise RuntimeError(
                "hotlap, lever cuda_graphs: a backward came after a later call of its model"
            )
        places = [place for place, _ in self._tensors]
        gradients = dict(zip(places, arrived, strict=True))
        led_to: set[int] = set()
        for place, recorded in zip(self._reached, self._arriving, strict=True):
            new = gradients.pop(place)
            if new is None:
                recorded.zero_()
            else:
                recorded.copy_(new)
                led_to |= self._leads_to[place]
        if any(one is not None for one in gradients.values()):
            raise RuntimeError(
                "hotlap, lever cuda_graphs: a result of the model is used that was not before"
            )
        self._backward()
        turn.is_done = True
        copies = self._torch._foreach_mul(self._gradients, 1.0)
        if len(led_to) == len(copies):
            return copies  # type: ignore[no-any-return]
        # None and not zero: an optimizer passes by what has no gradient.
        return [copy if i in led_to else None for i, copy in enumerate(copies)]


class NotReplayed:
    """Stands for a part of the result that only Python can make, such as a cache of a decoder.

    Trainings have no use for it; one that has is told so, and gets nothing that is out of date.
    """

    _kind: str

    def __init__(self, original: Any) -> None:
        self.__dict__["_kind"] = type(original).__name__

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"hotlap, lever cuda_graphs: the {self._kind} in the model's result is not replayed; "
            "run without this lever"
        )

    __getattr__ = __setattr__ = __getitem__ = __setitem__ = __iter__ = __len__ = _refuse
    __call__ = __bool__ = __contains__ = _refuse


@functools.cache
def _replayed(torch: Any) -> Any:
    """The function of autograd that replays a recording."""

    class Replayed(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, recording: Recording, *sources: Any) -> Any:
            ctx.recording = recording
            ctx.set_materialize_grads(False)
            return recording.forward(ctx)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None, *ctx.recording.backward(ctx.turn, gradients)

    return Replayed


def _leaves_behind(output: Any) -> set[int]:
    """The ids of the tensors that a gradient of this one leads to."""
    leaves, seen, waiting = {id(output)}, set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        waiting.extend(before for before, _ in node.next_functions)
    return leaves


def _double(tensor: Any) -> Any:
    """Another tensor of the same memory, without a history."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
