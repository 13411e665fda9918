"""A call of a model as two recordings, forward and backward, which are replayed.

    inputs      are copied into the memory that was recorded
    results     are copies: they live on when the next call overwrites what was recorded
    gradients   are copies too, and reach the parameters by autograd's own way, hooks and all

A recording computes nothing. It is made with stand-ins for the parameters, which share their
memory: the nodes of autograd that lead to the parameters themselves belong to the stream of the
steps before. It is made twice: first to look at every operation, for which functions that are
compiled run as they are written, then to be replayed. Before it is used, both ways are replayed
once and compared with a call of the model.

A backward that was not recorded (of other results, of a call before the last, of gradients that are
differentiated themselves) calls the model again, as it is, with the random numbers of that call.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hotlap.levers.common.given import as_given
from hotlap.levers.common.layouts import all_copied, copier, laid_out, layout_of
from hotlap.levers.common.reads import reading_mode, storage_of

Replay = Callable[[], None]


class Recorder(Protocol):
    """What makes recordings: CUDA graphs, or what stands in for them in tests."""

    def record(self, function: Callable[[], None]) -> Replay:
        """Call a function once, recording its kernels instead of running them; what runs them."""

    def is_capturing(self) -> bool:
        """Whether somebody records just now, on the present stream."""

    def random_state(self) -> Any:
        """Of the generator that recorded kernels draw from."""

    def set_random_state(self, state: Any) -> None:
        """Have it draw as it did when this was its state."""


Way = frozenset[tuple[int, tuple[int, ...]]]
"""A backward by the gradients that come to results: each result's place, and how its gradient lies
in memory, by which kernels are chosen."""

FAR = 1e-2
"""Relative: what a replay may differ by from a call. The same kernels give the same numbers, but
for sums whose order is left to chance."""


def way_of(gradients: Mapping[int, Any]) -> Way:
    """The way of these gradients, by the places of their results."""
    return frozenset((place, layout_of(one)) for place, one in gradients.items())


@dataclass(frozen=True, slots=True)
class Back:
    """One recorded backward."""

    arriving: Sequence[Any]
    """Where gradients of the results are put, in the order of their places."""
    gradients: Sequence[Any]
    """Where those of the sources are then; None for a source that it does not lead to."""
    replay: Replay


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
        self,
        torch: Any,
        model: Any,
        as_it_is: Callable[..., Any],
        stage: Stage,
        recorder: Recorder,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._torch, self._model, self._as_it_is, self._stage = torch, model, as_it_is, stage
        self._recorder, self._function = recorder, _replayed(torch)
        leaves = [
            _double(copier(torch, one)(one)) if isinstance(one, torch.Tensor) else one
            for one in (*args, *kwargs.values())
        ]
        self._args = tuple(leaves[: len(args)])
        self._kwargs = dict(zip(kwargs, leaves[len(args) :], strict=True))
        tensors = [(i, one) for i, one in enumerate(leaves) if isinstance(one, torch.Tensor)]
        self._inputs = [(place, one.detach()) for place, one in tensors]
        self._parameters = dict(model.named_parameters())
        self._stand_ins = {name: _double(one) for name, one in self._parameters.items()}
        sources: list[tuple[int | None, str, Any]] = [(place, "", one) for place, one in tensors]
        sources += [(None, name, one) for name, one in self._stand_ins.items()]
        sources = [one for one in sources if one[-1].requires_grad]
        self._places = [(place, name) for place, name, _ in sources]
        """What gradients are computed for: an input by its place, or a parameter by its name."""
        self._doubles = [double for *_, double in sources]
        self._device = next(iter(self._parameters.values())).device
        device = self._device.type
        self._autocast = functools.partial(
            torch.autocast,
            device,
            torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
        )
        self._without_autocast = functools.partial(torch.autocast, device, enabled=False)
        self.n_recomputed = 0
        """Backwards that were not recorded."""

    def make(self, ways: Collection[Way]) -> None:
        """Record forward, and backward in each of these ways."""
        torch = self._torch
        reads = reading_mode(torch)()
        first = self._record_forward(reads)
        self._check(reads)
        # Before the second one, which then is in the memory of the first.
        self._outputs: list[Any] = []
        self._forward = self._record_forward(contextlib.nullcontext())
        del first  # not before: with it would go the pool that workspaces of cuBLAS may be in
        self._backs = {way: self._recorded_back(way) for way in ways}
        self._led_to = self._places_led_to()
        self._held = reads.from_outside  # which a graph reads and does not keep
        self._draws = reads.draws
        tensors = [(i, one) for i, one in enumerate(self._outputs) if torch.is_tensor(one)]
        self._constants = [i for i, (_, one) in enumerate(tensors) if not one.requires_grad]
        self._tensors = [(place, one.detach()) for place, one in tensors]
        self._copies = [copier(torch, one) for _, one in self._tensors]
        self._others = [None if torch.is_tensor(one) else as_given(one) for one in self._outputs]
        del self._outputs  # and with it the graph of autograd; the memory of both ways stays

    def _record_forward(self, looking_on: Any) -> Replay:
        """With stand-ins, and with what looks at operations."""
        torch = self._torch

        def forward() -> None:
            with looking_on:
                result = self._called(self._stand_ins, self._args, self._kwargs)
            self._outputs, self._structure = torch.utils._pytree.tree_flatten(result)
            self._is_one = torch.is_tensor(result)

        torch.clear_autocast_cache()  # what is in it was not computed by what is recorded
        try:
            return self._recorder.record(forward)
        finally:
            torch.clear_autocast_cache()

    def _called(self, weights: dict[str, Any], args: Any, kwargs: Any) -> Any:
        return self._torch.func.functional_call(self._model, weights, args, kwargs)

    def _recorded_back(self, way: Way) -> Back:
        torch = self._torch
        outputs = [self._outputs[place] for place, _ in sorted(way)]
        arriving = [laid_out(torch, self._outputs[place], lay) for place, lay in sorted(way)]

        gradients: Sequence[Any] = ()

        def backward() -> None:
            nonlocal gradients
            gradients = torch.autograd.grad(
                outputs,
                self._doubles,
                arriving,
                allow_unused=True,
                retain_graph=True,  # so that a second backward finds what it needs
            )

        with self._without_autocast():
            replay = self._recorder.record(backward)
        if any(one is not None and one.layout is not torch.strided for one in gradients):
            raise RuntimeError("its gradients are sparse")
        return Back(arriving, gradients, replay)

    def _check(self, reads: Any) -> None:
        """That replays can do all that the call does."""
        doubles = set(map(id, self._doubles))
        buffers = {storage_of(one) for one in self._model.buffers()}
        own = buffers | {storage_of(one) for one in self._parameters.values()}
        own |= {storage_of(one) for _, one in self._inputs}
        if reads.written & {storage_of(one) for _, one in self._inputs}:
            raise RuntimeError("its forward changes its inputs")
        outside = {storage_of(one) for one in reads.from_outside}
        if reads.written & (outside - self._only_noted()):
            raise RuntimeError("its forward changes what it computes with")
        if reads.draws and reads.saves_elsewhere:
            raise RuntimeError("its backward draws the random numbers of its checkpoints again")
        if reads.crosses:
            raise RuntimeError("its forward copies between the host and its GPU")
        if any(one.device != self._device for one in reads.from_outside):
            raise RuntimeError("its forward reads a tensor that is not on its GPU")
        for one in self._outputs:
            if not self._torch.is_tensor(one):
                as_given(one)
            elif storage_of(one) in own:
                raise RuntimeError("its result is an input, a weight or a buffer of its own")
            elif one.requires_grad and not _leaves_behind(one) <= doubles:
                raise RuntimeError("gradients go to more than its parameters and inputs")

    def _only_noted(self) -> set[int | None]:
        """Buffers that a forward writes and does not compute with: of a norm, what it has seen.

        With these as they are now, a call gives the same result as it did then.
        """
        norms = self._torch.nn.modules.batchnorm._NormBase
        parts = [part for part in self._model.modules() if isinstance(part, norms)]
        return {storage_of(one) for part in parts for one in part.buffers(recurse=False)}

    def _places_led_to(self) -> list[tuple[int, Any]]:
        """The sources that gradients of any result lead to, in their order.

        Each with the parameter if recorded backwards give no gradient for it, which others may.
        """
        leaves = set[int]()
        for one in self._outputs:
            if self._torch.is_tensor(one) and one.requires_grad:
                leaves |= _leaves_behind(one)
        found = []
        for i, (double, (place, name)) in enumerate(zip(self._doubles, self._places, strict=True)):
            if id(double) in leaves:
                is_given = any(back.gradients[i] is not None for back in self._backs.values())
                is_sure = is_given or place is not None
                found.append((i, None if is_sure else self._parameters[name]))
        return found

    def check_against_a_call(self) -> None:
        """That both ways give what the model itself gives for these inputs and random numbers.

        Kernels that a library launches elsewhere are not recorded, and nothing else tells of them.
        """
        torch, recorder = self._torch, self._recorder
        random_state = recorder.random_state()
        for _, one in self._inputs:
            if one.is_floating_point() and one.dim():
                one.copy_(one.flip(0))  # what was computed while recording is not to be right
        buffers = [(one, one.detach().clone()) for one in self._model.buffers()]
        (way, back), *_ = self._backs.items()
        try:
            with torch.enable_grad(), self._autocast():
                result = self._called(self._stand_ins, self._args, self._kwargs)
            outputs = torch.utils._pytree.tree_leaves(result)
            ones = [torch.ones_like(outputs[place]) for place, _ in sorted(way)]
            with self._without_autocast():
                gradients = torch.autograd.grad(
                    [outputs[place] for place, _ in sorted(way)],
                    self._doubles,
                    ones,
                    allow_unused=True,
                )
            self._put_back(buffers, random_state)
            given = [one for _, one in self._tensors]
            self._wipe((*given, *back.gradients))
            self._forward()
            called = [one.detach() for one in outputs if torch.is_tensor(one)]
            if _are_far(torch, given, called):
                raise RuntimeError("its results are others when it is replayed")
            torch._foreach_copy_(list(back.arriving), ones)
            back.replay()
            if _are_far(torch, back.gradients, gradients):
                raise RuntimeError("its gradients are others when it is replayed")
        finally:
            torch.clear_autocast_cache()  # of stand-ins, which nobody calls the model with again
            self._put_back(buffers, random_state)

    def _wipe(self, made: Sequence[Any]) -> None:
        """Forget what was computed while recording; a gradient may be a weight, which stays."""
        outside = (*self._model.parameters(), *self._model.buffers(), *self._held)
        theirs = set(map(storage_of, outside))
        for one in made:
            if one is not None and storage_of(one) not in theirs and 0 not in layout_of(one):
                one.zero_()

    def _put_back(self, buffers: Sequence[tuple[Any, Any]], random_state: Any) -> None:
        for buffer, value in buffers:
            buffer.data.copy_(value)
        self._recorder.set_random_state(random_state)

    def play(self, *args: Any, **kwargs: Any) -> Any:
        """The call with these arguments."""
        torch = self._torch
        leaves = (*args, *kwargs.values())
        for place, recorded in self._inputs:
            recorded.copy_(leaves[place].detach())
        # A hook on a weight is not to see that no gradient comes to it.
        led_to = [i for i, one in self._led_to if one is None or not one._backward_hooks]
        places = [self._places[i] for i in led_to]
        sources = [self._parameters[name] if i is None else leaves[i] for i, name in places]
        plain = [None if torch.is_tensor(one) else one for one in leaves]
        inputs = [leaves[place] for place, _ in self._inputs]
        call = plain, len(args), tuple(kwargs)
        results = self._function.apply(self, call, led_to, inputs, *sources)
        if self._is_one:
            return results[0]
        outputs = list(self._others)
        for (place, _), result in zip(self._tensors, results, strict=True):
            outputs[place] = result
        return self._torch.utils._pytree.tree_unflatten(outputs, self._structure)

    def forward(self, context: Any) -> tuple[Any, ...]:
        """Replay forward; copies of what it gives."""
        context.turn = self._stage.enter()
        context.random_state = self._recorder.random_state() if self._draws else None
        self._forward()
        pairs = zip(self._copies, self._tensors, strict=True)
        results = tuple([copy(one) for copy, (_, one) in pairs])
        if self._constants:
            context.mark_non_differentiable(*(results[i] for i in self._constants))
        return results

    def backward(self, context: Any, arrived: Sequence[Any]) -> list[Any]:
        """Replay backward; copies of the gradients that it gives."""
        torch = self._torch
        came = {
            place: gradient
            for (place, _), gradient in zip(self._tensors, arrived, strict=True)
            if gradient is not None
        }
        back = self._backs.get(way_of(came))
        if back is None or torch.is_grad_enabled() or not self._stage.is_on(context.turn):
            return self._recomputed(context, came)
        torch._foreach_copy_(back.arriving, [came[place] for place in sorted(came)])
        back.replay()
        context.turn.is_done = True
        gradients = [back.gradients[i] for i in context.led_to]
        # None and not zero: an optimizer passes by what has no gradient.
        return all_copied(torch, gradients)

    def _recomputed(self, context: Any, came: dict[int, Any]) -> list[Any]:
        """Gradients by a call of the model as it is."""
        torch = self._torch
        self.n_recomputed += 1
        outputs, views = self._called_again(context)
        if any(_leaves_behind(outputs[place], views) for place in came):
            raise _no_way("it leads to a weight with a hook that none before led to")
        with self._without_autocast():
            gradients = torch.autograd.grad(
                [outputs[place] for place in came],
                views,
                list(came.values()),
                allow_unused=True,
                create_graph=torch.is_grad_enabled(),
            )
        context.turn.is_done = True
        return list(gradients)

    def _called_again(self, context: Any) -> tuple[list[Any], list[Any]]:
        """The results, and views of the sources that they are computed from.

        Views, so that gradients end there and not where the sources come from.
        """
        torch = self._torch
        saved = context.saved_tensors  # raises if one was changed since, as it does without us
        plain, n_args, names = context.call
        leaves = list(plain)
        for (place, _), one in zip(self._inputs, saved, strict=False):
            leaves[place] = one
        views, weights = list[Any](), dict[str, Any]()
        before = [(one, one.clone()) for one in self._model.buffers()]
        drawing = self._random_numbers_of(context.random_state)
        with torch.enable_grad(), self._autocast(), drawing:
            for place, name in (self._places[i] for i in context.led_to):
                source = self._parameters[name] if place is None else leaves[place]
                views.append(source.view_as(source))
                if place is None:
                    weights[name] = views[-1]
                else:
                    leaves[place] = views[-1]
            named = dict(zip(names, leaves[n_args:], strict=True))
            result = self._as_it_is(weights, tuple(leaves[:n_args]), named)
        for buffer, value in before:
            buffer.data.copy_(value)
        return torch.utils._pytree.tree_leaves(result), views

    @contextlib.contextmanager
    def _random_numbers_of(self, state: Any) -> Iterator[None]:
        """Draw as then; None where nothing is drawn."""
        now = self._recorder.random_state() if state is not None else None
        if state is not None:
            self._recorder.set_random_state(state)
        try:
            yield
        finally:
            if state is not None:
                self._recorder.set_random_state(now)


def _no_way(why: str) -> RuntimeError:
    return RuntimeError(
        f"hotlap, lever cuda_graphs: a backward came that none before was like, and {why}; run "
        "without this lever"
    )


@functools.cache
def _replayed(torch: Any) -> Any:
    """The function of autograd that replays a recording."""

    class Replayed(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any, recording: Recording, call: Any, led_to: Any, inputs: Any, *sources: Any
        ) -> Any:
            ctx.recording, ctx.call, ctx.led_to = recording, call, led_to
            ctx.save_for_backward(*inputs, *sources)  # which a backward lets go of
            ctx.set_materialize_grads(False)
            return recording.forward(ctx)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None, None, None, None, *ctx.recording.backward(ctx, gradients)

    return Replayed


def nodes_behind(node: Any, inner: Sequence[Any] = ()) -> set[Any]:
    """The nodes of autograd that a gradient goes by from this one on, itself among them.

    Not those that it comes to by way of an inner tensor alone.
    """
    seen = {one.grad_fn for one in inner}
    found, waiting = set[Any](), [node]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.add(node)
            waiting.extend(before for before, _ in node.next_functions)
    return found


def _are_far(torch: Any, some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether tensors differ by more than chance, all in all; whole numbers do not count."""
    pairs = [(a, b) for a, b in zip(some, others, strict=True) if a is not None and b is not None]
    pairs = [(a, b) for a, b in pairs if a.is_floating_point() or a.is_complex()]
    norms = [(torch.linalg.vector_norm(a - b), torch.linalg.vector_norm(b)) for a, b in pairs]
    apart, size = (sum(float(one) ** 2 for one in column) for column in zip(*norms, strict=True))
    # With what is not finite nothing can be compared; what is not where it should be is far.
    return math.isfinite(size) and not apart <= FAR**2 * size


def _leaves_behind(output: Any, inner: Sequence[Any] = ()) -> set[int]:
    """The ids of the tensors that a gradient of this one leads to, and not by inner ones alone."""
    if output.grad_fn is None:
        return {id(output)}
    nodes = nodes_behind(output.grad_fn, inner)
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}


def _double(tensor: Any) -> Any:
    """Another tensor of the same memory, without a history."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
