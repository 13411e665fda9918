"""A model whose call is replayed, where it does the same each time.

The first calls of a kind (shapes, types, settings) run as they are and are watched: their Python
has to do nothing but compute, and their backward has to come before the next call. Then both ways
are recorded, and from there on replayed: the host launches two CUDA graphs in the place of all
kernels. What is not as it was recorded runs as it is: other shapes, no gradients, hooks, a weight
elsewhere, a call before the backward of the one before, gradients of gradients.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotlap.levers.common.layouts import NO_STRIDES, layout_of
from hotlap.levers.common.recording import Recorder, Recording, Stage, Way, nodes_behind
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
MOST_RECOMPUTED = 3
"""Backwards that a recording may have none for, before it is made anew."""


@dataclass(slots=True)
class Watched:
    """What one call, and the backward that followed it, was seen to do."""

    by_task: dict[int, set[tuple[int, tuple[int, ...]]]] = field(default_factory=dict)
    """For each backward: the gradients that came to results, as in a Way."""
    oddity: str = ""
    """What its Python did besides computing."""
    handles: list[Any] = field(default_factory=list)

    @property
    def ways(self) -> frozenset[Way]:
        """The kinds of backwards that came."""
        return frozenset(map(frozenset, self.by_task.values()))

    def end(self) -> None:
        """Watch no more."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if not self.by_task:
            self.oddity = self.oddity or "its backward does not come before its next call"


@dataclass(slots=True)
class Kind:
    """Calls with arguments of one kind."""

    n_alike: int = 0
    watched: Watched | None = None
    """The last call whose backward has come, to compare the next with."""
    recording: Recording | None = None

    def see(self, new: Watched) -> None:
        """Count how many calls in a row did the same."""
        old, self.watched = self.watched, new
        is_like = old is not None and (old.oddity, old.ways) == ("", new.ways)
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
        recorder: Recorder,
        tell: Callable[[str, str], None],
    ) -> None:
        self._torch, self._model, self._settings = torch, model, settings
        self._recorder, self._tell = recorder, tell
        self._eager: Callable[..., Any] = model._call_impl
        self._kinds: dict[Any, Kind] = {}
        self._waiting: tuple[Kind, Watched] | None = None
        self._n_watched = self._n_changes = self._n_unfit = 0
        self._oddity = ""
        self._gave_up = False
        self._stage = Stage()
        self._device = next(model.parameters()).device
        self._look()

    def _look(self) -> None:
        """At the model as it is now."""
        self._parameters = dict(self._model.named_parameters())
        self._unchanged = Unchanged(self._torch, self._model, self._settings)
        self._is_training = self._model.training
        if next(iter(self._parameters.values())).device != self._device:
            self._give_up("it is on another device now")

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
        # Validation that has forgotten `no_grad` is not another model.
        if not self._can_be_replayed():
            if self._torch.is_grad_enabled():
                self._count_unfit("its calls are looked into, by checkpoints or a mode of torch's")
            return self._eager
        if self._model.training is not self._is_training:
            if self._model.training:
                self._forget()
                self._look()
            return self._eager
        if not self._unchanged.holds():
            self._begin_anew()
            return self._eager
        if self._waiting is not None:
            self._learn()
        key = self._key_of(args, kwargs)
        if key is None:
            self._count_unfit("it is called with more than plain values and tensors on its GPU")
            return self._eager
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) < MOST_KINDS:
            kind = self._kinds[key] = Kind()
        if kind is None or self._stage.is_open:
            return self._eager
        if kind.recording is not None and kind.recording.n_recomputed > MOST_RECOMPUTED:
            self._begin_anew()
            return self._eager
        is_known = kind.recording is None and kind.n_alike >= N_WATCHED
        if is_known and len(self._recordings()) < MOST_RECORDINGS:
            kind.recording = self._recorded(kind, args, kwargs)
        if kind.recording is not None:
            return kind.recording.play
        is_watched = not self._gave_up and self._n_watched < MOST_WATCHED
        if not is_watched:
            return self._eager
        return functools.partial(self._watch, kind, self._traces((*args, *kwargs.values())))

    def _count_unfit(self, why: str) -> None:
        """A call that cannot be replayed."""
        self._n_unfit += 1
        if self._n_unfit == MOST_WATCHED and not self._recordings():
            self._give_up(why)

    def _begin_anew(self) -> None:
        """The model is another one now."""
        self._n_changes += 1
        self._forget()
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
            and not _has_modes(torch)
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch.autograd.forward_ad._current_level < 0
            # In a backward, or where its tensors are saved elsewhere, the script checkpoints.
            and torch._C._current_graph_task_id() == -1
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
            and not torch.compiler.is_dynamo_compiling()
            and not self._recorder.is_capturing()  # the script records it itself
        )

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """The kind of a call by its arguments; None for one that cannot be recorded."""
        torch, device = self._torch, self._device
        is_half = torch.is_autocast_enabled(device.type)
        half = is_half and torch.get_autocast_dtype(device.type)
        key: list[Any] = [len(args), *kwargs, half, *_flags(torch)]
        for leaf in (*args, *kwargs.values()):
            if type(leaf) is torch.Tensor:
                if leaf.device != device or leaf.layout is not torch.strided:
                    return None
                key.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
            elif isinstance(leaf, PLAIN):
                key.append((type(leaf), leaf))
            else:
                return None
        return tuple(key)

    def _forget(self) -> None:
        self._kinds.clear()
        if self._waiting is not None:
            self._waiting[1].end()
            self._waiting = None

    def _give_up(self, why: str) -> None:
        self._gave_up = True
        self._forget()
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

    def _watch(self, kind: Kind, before: dict[str, Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the model as it is, with an eye on its Python and on its backward."""
        watched, result = Watched(), self._eager(*args, **kwargs)
        try:
            after = self._traces((*args, *kwargs.values()))
            watched.oddity = next((what for what in before if before[what] != after[what]), "")
            result = self._watch_gradients(watched, result)
            self._waiting = kind, watched
        except Exception as error:  # of ours: the training goes on without
            watched.end()
            self._give_up(f"{type(error).__name__}: {error}")
        self._n_watched += 1
        return result

    def _traces(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """By what a forward may do besides computing: where that would show."""
        tensors = filter(self._torch.is_tensor, leaves)
        inputs = [(one._version, one.requires_grad) for one in tensors]
        return {
            "its forward sets attributes": self._settings.n_set,
            "its forward draws random numbers on the host": _random_states(self._torch),
            "its forward changes what its parts hold": self._unchanged.contents(),
            "its forward changes its inputs": inputs,
        }

    def _watch_gradients(self, watched: Watched, result: Any) -> Any:
        """Put hooks on all results; on copies of those that others are computed from.

        A loss in the result has gradients come to the logits beside it, which nobody has used.
        """
        tree = self._torch.utils._pytree
        outputs, structure = tree.tree_flatten(result)
        places = [i for i, one in enumerate(outputs) if _has_gradient(self._torch, one)]
        ways = {place: nodes_behind(outputs[place].grad_fn) for place in places}
        inner = {i for i in places for j in places if i != j and outputs[i].grad_fn in ways[j]}
        if any(outputs[place].retains_grad for place in places):
            watched.oddity = "its result is to retain its gradient"
            return result
        for place in inner:
            outputs[place] = outputs[place].clone()
        for place in places:
            see = functools.partial(self._see_gradient, watched, place)
            watched.handles.append(outputs[place].register_hook(see))
        return tree.tree_unflatten(outputs, structure) if inner else result

    def _see_gradient(self, watched: Watched, place: int, gradient: Any) -> None:
        """A gradient came to a result of the model."""
        torch = self._torch
        if gradient is None:
            return
        try:
            task = torch._C._current_graph_task_id()
            if task not in watched.by_task:
                look = functools.partial(self._look_again, watched, self._unchanged.contents())
                torch.autograd.Variable._execution_engine.queue_callback(look)
            watched.by_task.setdefault(task, set()).add((place, layout_of(gradient)))
        except Exception as error:  # of ours: the backward goes on
            watched.oddity = f"{type(error).__name__}: {error}"
            return
        if layout_of(gradient) == NO_STRIDES:
            watched.oddity = "gradients of its result are sparse"
        elif torch.is_grad_enabled():
            watched.oddity = "its gradients are differentiated themselves"
        elif torch.is_autocast_enabled(self._device.type):
            watched.oddity = "its backward is in autocast"

    def _look_again(self, watched: Watched, before: list[Any]) -> None:
        """At the end of a backward."""
        try:
            is_same = self._unchanged.contents() == before
        except Exception as error:  # of ours: the backward goes on
            watched.oddity = f"{type(error).__name__}: {error}"
            return
        if not is_same:
            watched.oddity = "its backward changes what its parts hold"

    def _recorded(
        self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording | None:
        GraphedModel.is_recording = True
        try:
            recording = Recording(
                self._torch,
                self._model,
                self._as_it_is,
                self._stage,
                self._recorder,
                args,
                kwargs,
            )
            assert kind.watched is not None
            recording.make(kind.watched.ways)
            self._stage.enter()  # the check writes where the others of this model have theirs
            recording.check_against_a_call()
        except Exception as error:
            self._give_up(f"it cannot be recorded: {_first_cause(error)}")
            return None
        finally:
            GraphedModel.is_recording = False
        self._tell("done", f"{type(self._model).__name__} is replayed, forward and backward")
        return recording

    def _as_it_is(
        self, weights: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The call with these weights, and without any recording of the model or of its parts."""
        GraphedModel.is_recording = True
        try:
            return self._torch.func.functional_call(self._model, weights, args, kwargs)
        finally:
            GraphedModel.is_recording = False

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        """A model that is saved or copied is the model alone."""
        return _nothing, ()


def _first_cause(error: BaseException) -> str:
    """What went wrong before all else: torch then fails once more as it ends the recording."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0] or type(error).__name__


def _has_gradient(torch: Any, output: Any) -> bool:
    return bool(torch.is_tensor(output) and output.requires_grad)


def _nothing() -> None:
    return None


def _has_modes(torch: Any) -> bool:
    """Whether functions of torch's are looked at; a default device is a mode as well."""
    of = torch._C
    modes = [of._get_function_stack_at(i) for i in range(of._len_torch_function_stack())]
    return any(type(mode).__name__ != "DeviceContext" for mode in modes)


def _flags(torch: Any) -> tuple[Any, ...]:
    """Settings of torch's that kernels are chosen by."""
    of = torch._C
    # From torch 2.9 on, the getters of old raise where a script uses the new ones.
    precision = getattr(of, "_get_fp32_precision_getter", None)
    if precision is not None:
        precisions = [precision("cuda", what) for what in ("matmul", "conv", "rnn")]
    else:
        precisions = [of._get_float32_matmul_precision(), of._get_cudnn_allow_tf32()]
    return (
        *precisions,
        of._get_cudnn_enabled(),
        of._get_cudnn_benchmark(),
        of._get_cudnn_deterministic(),
        of._get_cublas_allow_fp16_reduced_precision_reduction(),
        of._get_cublas_allow_bf16_reduced_precision_reduction(),
        of._get_deterministic_algorithms(),
        of._get_cudnn_sdp_enabled(),
        of._get_flash_sdp_enabled(),
        of._get_mem_efficient_sdp_enabled(),
        of._get_math_sdp_enabled(),
    )


def _random_states(torch: Any) -> tuple[Any, ...]:
    """Of the generators that Python on the host may decide by."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state(legacy=False) if numpy is not None else ""
    host = torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), host, repr(of_numpy)
