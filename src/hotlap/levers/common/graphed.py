"""A model's call as two recordings, forward and backward, which are replayed.

The first calls of a kind (shapes, types, settings) run as they are and are watched: their Python
has to do nothing but compute, and their backward has to come before the next call. Then both ways
are recorded, which computes nothing, and from there on replayed: the host launches two CUDA graphs
in the place of all kernels.

    inputs      are copied into the memory that was recorded
    results     are copies: they live on when the next call overwrites what was recorded
    gradients   are copies too, and reach the parameters by autograd's own way, hooks and all
    else        what is not as it was recorded runs as it is: other shapes, no gradients, hooks, a
                weight elsewhere, a call before the backward of the one before

The recording is made with stand-ins for the parameters, which share their memory: the nodes of
autograd that lead to the parameters themselves belong to the stream of the steps before.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotlap.levers.common.unchanged import PLAIN, Settings, Unchanged

N_WATCHED = 3
"""Calls of a kind, one like the other, before it is recorded: what torch and its libraries make at
a first use is made then."""
MOST_WATCHED = 60
"""Calls after which no more are watched."""
MOST_CHANGES = 20
"""Times that a model may be found changed: what changes in every step is not worth a recording."""
MOST_KINDS = 32
"""Kinds of calls that are told apart."""
MOST_RECORDINGS = 4
"""Each keeps the memory of a step."""

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


@dataclass(slots=True)
class Watched:
    """What one call, and the backward that followed it, was seen to do."""

    outputs: set[int] = field(default_factory=set)
    """Results that gradients came to, by their place."""
    sources: set[int] = field(default_factory=set)
    """Inputs and parameters that gradients came to, by their place."""
    oddity: str = ""
    """What its Python did besides computing."""
    handles: list[Any] = field(default_factory=list)

    def end(self) -> None:
        """Watch no more."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if not self.outputs:
            self.oddity = self.oddity or "its backward does not come before its next call"


@dataclass(slots=True)
class Kind:
    """Calls with arguments of one kind."""

    n_alike: int = 0
    watched: Watched | None = None
    """The last call, while its backward may still come; then the one to compare the next with."""
    recording: Recording | None = None

    def see(self, new: Watched) -> None:
        """Count how many calls in a row did the same."""
        old, self.watched = self.watched, new
        is_like = old is not None and not old.oddity and old.outputs == new.outputs
        is_like = is_like and old is not None and old.sources == new.sources
        self.n_alike = 0 if new.oddity else self.n_alike + 1 if is_like else 1


class GraphedModel:
    """Takes the place of a model's call."""

    is_recording = False
    """Of any model: one that is a part of another one is recorded with it."""

    def __init__(
        self,
        torch: Any,
        model: Any,
        settings: Settings,
        record: Record,
        tell: Callable[[str, str], None],
    ) -> None:
        self._torch, self._model, self._settings = torch, model, settings
        self._record, self._tell = record, tell
        self._eager: Callable[..., Any] = model._call_impl
        self._kinds: dict[Any, Kind] = {}
        self._waiting: tuple[Kind, Watched] | None = None
        self._n_watched = self._n_changes = 0
        self._oddity = ""
        self._gave_up = False
        self._stage = Stage()
        self._look()

    def _look(self) -> None:
        """At the model as it is now."""
        self._parameters = dict(self._model.named_parameters())
        self._device = next(iter(self._parameters.values())).device
        self._unchanged = Unchanged(self._torch, self._model, self._settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's call."""
        if self._gave_up or GraphedModel.is_recording:
            return self._eager(*args, **kwargs)
        try:
            call = self._chosen(args, kwargs)
        except Exception as error:  # of ours: the training goes on without
            self._give_up(f"{type(error).__name__}: {error}")
            call = self._eager
        return call(*args, **kwargs)

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """How this call is made: as it is, watched, or as a replay."""
        if not self._can_be_replayed():
            return self._eager
        if not self._unchanged.holds():
            self._begin_anew()
            return self._eager
        if self._waiting is not None:
            self._learn()
        kind = self._kind_of(args, kwargs)
        if kind is None or self._stage.is_open:
            return self._eager
        is_known = kind.recording is None and kind.n_alike >= N_WATCHED
        if is_known and len(self._recordings()) < MOST_RECORDINGS:
            kind.recording = self._recorded(kind, args, kwargs)
        if kind.recording is not None:
            return kind.recording.play
        is_watched = not self._gave_up and self._n_watched < MOST_WATCHED
        return functools.partial(self._watch, kind) if is_watched else self._eager

    def _begin_anew(self) -> None:
        """The model is another one now."""
        self._n_changes += 1
        self._kinds.clear()
        if self._waiting is not None:
            self._waiting[1].end()
            self._waiting = None
        if self._unchanged.has_hooks():
            self._give_up("it has hooks, which Python has to be asked for")
        elif self._n_changes > MOST_CHANGES:
            self._give_up("its weights or settings are exchanged all the time")
        else:
            self._look()

    def _can_be_replayed(self) -> bool:
        """Whether nothing is going on that has to see every operation."""
        torch = self._torch
        return bool(
            torch.is_grad_enabled()
            and not torch.is_anomaly_enabled()
            and not torch._C._len_torch_dispatch_stack()
            and not torch._C._len_torch_function_stack()
            and not torch.compiler.is_dynamo_compiling()
        )

    def _kind_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind | None:
        """The kind of a call by its arguments; None for one that cannot be recorded."""
        torch, device = self._torch, self._device
        is_half = torch.is_autocast_enabled(device.type)
        key: list[Any] = [len(args), *kwargs, is_half and torch.get_autocast_dtype(device.type)]
        for leaf in (*args, *kwargs.values()):
            if type(leaf) is torch.Tensor:
                if leaf.device != device or leaf.layout is not torch.strided:
                    return None
                key.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
            elif type(leaf) in PLAIN:
                key.append((type(leaf), leaf))
            else:
                return None
        found = self._kinds.get(tuple(key))
        if found is None and len(self._kinds) < MOST_KINDS:
            found = self._kinds[tuple(key)] = Kind()
        return found

    def _give_up(self, why: str) -> None:
        self._gave_up = True
        self._kinds.clear()
        self._tell("failed", why)

    # Watching and recording -------------------------------------------------------------------

    def _learn(self) -> None:
        """From the call before: its backward has come, if it ever will."""
        assert self._waiting is not None
        (kind, watched), self._waiting = self._waiting, None
        watched.end()
        kind.see(watched)
        self._oddity = watched.oddity or self._oddity
        if self._n_watched == MOST_WATCHED and not self._recordings():
            self._give_up(self._oddity or "its inputs change their shapes all the time")

    def _recordings(self) -> list[Recording]:
        return [one.recording for one in self._kinds.values() if one.recording is not None]

    def _watch(self, kind: Kind, *args: Any, **kwargs: Any) -> Any:
        """Call the model as it is, with an eye on its Python and on its backward."""
        watched, n_set, drawn = Watched(), self._settings.n_set, _random_states(self._torch)
        result = self._eager(*args, **kwargs)
        if self._settings.n_set != n_set:
            watched.oddity = "its forward sets attributes"
        elif _random_states(self._torch) != drawn:
            watched.oddity = "its forward draws random numbers on the host"
        try:
            self._watch_gradients(watched, (*args, *kwargs.values()), result)
        except Exception as error:  # of ours: the training goes on without
            self._give_up(f"{type(error).__name__}: {error}")
        self._n_watched += 1
        self._waiting = kind, watched
        return result

    def _watch_gradients(self, watched: Watched, leaves: Sequence[Any], result: Any) -> None:
        for place, source in enumerate(self._sources(leaves)):
            watched.handles.append(source.register_hook(_adds(place, watched.sources)))
        outputs, _ = self._torch.utils._pytree.tree_flatten(result)
        for place, output in enumerate(outputs):
            if self._torch.is_tensor(output):
                if output.requires_grad:
                    watched.handles.append(output.register_hook(_adds(place, watched.outputs)))
            elif type(output) not in PLAIN:
                watched.oddity = f"its result holds a {type(output).__name__}"

    def _sources(self, leaves: Sequence[Any]) -> list[Any]:
        """What gradients are computed for."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, self._torch.Tensor)]
        return [one for one in (*tensors, *self._parameters.values()) if one.requires_grad]

    def _recorded(
        self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording | None:
        GraphedModel.is_recording = True
        try:
            recording = Recording(self._torch, self._model, self._stage, args, kwargs)
            recording.make(kind.watched or Watched(), self._record)
        except Exception as error:
            self._give_up(f"it cannot be recorded: {_first_cause(error)}")
            return None
        finally:
            GraphedModel.is_recording = False
        self._tell("done", f"{type(self._model).__name__} is replayed, forward and backward")
        return recording


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

    def make(self, watched: Watched, record: Record) -> None:
        """Record both ways, with gradients from and to where a watched call had them."""
        torch = self._torch
        is_tensor = torch.is_tensor
        self._reached = sorted(watched.outputs)

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
        if any(gradients[place] is None for place in watched.sources):
            raise RuntimeError("gradients do not come by way of the parameters")
        self._gradients = [one for one in gradients if one is not None]
        pairs = zip(self._sources, gradients, strict=True)
        self._wanted = [one for (one, _), gradient in pairs if gradient is not None]
        tensors = [(place, one) for place, one in enumerate(self._outputs) if is_tensor(one)]
        self._constants = [i for i, (_, one) in enumerate(tensors) if not one.requires_grad]
        self._tensors = [(place, one.detach()) for place, one in tensors]
        for place, _ in tensors:  # with them goes the graph of autograd; what they fill stays
            self._outputs[place] = None

    def play(self, *args: Any, **kwargs: Any) -> Any:
        """The call with these arguments."""
        leaves = (*args, *kwargs.values())
        for place, recorded in self._inputs:
            recorded.copy_(leaves[place].detach())
        sources = [leaves[one] if type(one) is int else one for one in self._wanted]
        results = self._function.apply(self, *sources)
        if self._is_one:
            return results[0]
        outputs = list(self._outputs)
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
        for place, recorded in zip(self._reached, self._arriving, strict=True):
            new = gradients.pop(place)
            recorded.zero_() if new is None else recorded.copy_(new)
        if any(one is not None for one in gradients.values()):
            raise RuntimeError(
                "hotlap, lever cuda_graphs: a result of the model is used that was not before"
            )
        self._backward()
        turn.is_done = True
        return self._torch._foreach_mul(self._gradients, 1.0)  # type: ignore[no-any-return]


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


def _first_cause(error: BaseException) -> str:
    """What went wrong before all else: torch then fails once more as it ends the recording."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0] or type(error).__name__


def _double(tensor: Any) -> Any:
    """Another tensor of the same memory, without a history."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _adds(place: int, seen: set[int]) -> Callable[[Any], None]:
    """A hook that notes that a gradient came by."""

    def see(gradient: Any) -> None:
        if gradient is not None:
            seen.add(place)

    return see


def _random_states(torch: Any) -> tuple[Any, ...]:
    """Of the generators that Python on the host may decide by."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state()[1:3] if numpy is not None else (b"", 0)
    host = torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), host, bytes(of_numpy[0]), of_numpy[1]
