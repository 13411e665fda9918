"""A model whose call is replayed, where it does the same each time.

The first calls of a kind (shapes, types, settings) run as they are and are watched: their Python
has to do nothing but compute, and their backward has to come before the next call. Then both ways
are recorded, and from there on replayed: the host launches two CUDA graphs in the place of all
kernels. What is not as it was recorded runs as it is: other shapes, no gradients, hooks, a weight
elsewhere, a call before the backward of the one before.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotlap.levers.common.recording import Record, Recording, Stage
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
    """The last call whose backward has come, to compare the next with."""
    recording: Recording | None = None

    def see(self, new: Watched) -> None:
        """Count how many calls in a row did the same."""
        old, self.watched = self.watched, new
        did = ("", new.outputs, new.sources)
        is_like = old is not None and (old.oddity, old.outputs, old.sources) == did
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
        self._n_watched = self._n_changes = self._n_unfit = 0
        self._oddity = ""
        self._gave_up = False
        self._stage = Stage()
        self._look()

    def _look(self) -> None:
        """At the model as it is now."""
        self._parameters = dict(self._model.named_parameters())
        self._device = next(iter(self._parameters.values())).device
        self._unchanged = Unchanged(self._torch, self._model, self._settings)
        self._is_training = self._model.training

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
        if not self._can_be_replayed() or self._model.training is not self._is_training:
            return self._eager
        if not self._unchanged.holds():
            self._begin_anew()
            return self._eager
        if self._waiting is not None:
            self._learn()
        key = self._key_of(args, kwargs)
        if key is None:
            self._n_unfit += 1
            if self._n_unfit == MOST_WATCHED and not self._recordings():
                self._give_up("it is called with more than plain values and tensors on its GPU")
            return self._eager
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) < MOST_KINDS:
            kind = self._kinds[key] = Kind()
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
            and not torch._C._len_torch_function_stack()
            and not torch.compiler.is_dynamo_compiling()
        )

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
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
            self._waiting = kind, watched
        except Exception as error:  # of ours: the training goes on without
            watched.end()
            self._give_up(f"{type(error).__name__}: {error}")
        self._n_watched += 1
        return result

    def _watch_gradients(self, watched: Watched, leaves: Sequence[Any], result: Any) -> None:
        for place, source in enumerate(self._sources(leaves)):
            watched.handles.append(source.register_hook(_adds(place, watched.sources)))
        outputs, _ = self._torch.utils._pytree.tree_flatten(result)
        for place, output in enumerate(outputs):
            if self._torch.is_tensor(output) and output.requires_grad:
                watched.handles.append(output.register_hook(_adds(place, watched.outputs)))

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
            watched = kind.watched or Watched()
            recording.make(watched.outputs, watched.sources, self._record)
        except Exception as error:
            self._give_up(f"it cannot be recorded: {_first_cause(error)}")
            return None
        finally:
            GraphedModel.is_recording = False
        self._tell("done", f"{type(self._model).__name__} is replayed, forward and backward")
        return recording


def _first_cause(error: BaseException) -> str:
    """What went wrong before all else: torch then fails once more as it ends the recording."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0] or type(error).__name__


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
