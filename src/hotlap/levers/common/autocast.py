"""Half precision for the calls of a model, as torch.autocast gives it, with fp32 results."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from hotlap.levers.common.edits import Edit, tell, wrap_block
from hotlap.levers.common.halves import halves
from hotlap.levers.common.lever import Decision
from hotlap.levers.common.model_edits import models_to_edit
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

CPU_FLAGS = {"avx512_bf16", "amx_bf16"}
"""Of CPUs with instructions for bf16."""


def autocast_calls(
    torch: Any, process: Process, dtype: Any, begin: Callable[[str], None] | None = None
) -> None:
    """Run each outermost call of an fp32 model in autocast and give back fp32.

    The loss, which the script takes of the result, is then computed in fp32. Validation runs in the
    same precision. `begin(device type)` is called before the first training call of a model that
    this is done to.
    """
    places: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
    begun: WeakSet[Any] = WeakSet()

    def device_of(module: Any) -> str | None:
        place = places.get(module)
        if place is None or not place.holds():
            place = places[module] = Place(torch, module)
        return place.device

    def context(module: Any) -> Any:
        device = device_of(module)
        if device is None or torch.is_autocast_enabled(device):
            return contextlib.nullcontext()
        if module not in begun and torch.is_grad_enabled():
            begun.add(module)
            process.did(f"{type(module).__name__} is called in autocast, in {_name(dtype)}")
            if begin is not None:
                begin(device)
        return torch.autocast(device, dtype=dtype)

    def give_fp32(module: Any, result: Any) -> Any:
        device = device_of(module)
        if device is None or torch.is_autocast_enabled(device):
            return result
        try:
            return to_fp32(torch, result)
        except Exception as error:  # a result of an odd kind: the script gets it as it is
            process.failed(f"a result stays in half precision: {type(error).__name__}: {error}")
            return result

    process.around_calls(context)
    process.on_output(give_fp32)


class Place:
    """The device of an fp32 model, as long as its first parameter says that nothing has changed.

    A model may move, or change its type, after a first call that was for a shape alone. Asked twice
    a step: so the parameter is looked up where it is kept, and not searched for again.
    """

    __slots__ = ("_books", "_name", "_was", "device")

    def __init__(self, torch: Any, module: Any) -> None:
        self._books, self._name = _first_parameter(module)
        self._was = self._now()
        self.device = _fp32_device(torch, module)

    def holds(self) -> bool:
        """Whether the first parameter is still of the same kind."""
        return self._now() == self._was

    def _now(self) -> tuple[str, Any] | None:
        first = self._books.get(self._name)
        return None if first is None else (first.device.type, first.dtype)


def _first_parameter(module: Any) -> tuple[dict[str, Any], str]:
    """The books of the part that has it, and its name there."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                return part._parameters, name
    return {}, ""


def _fp32_device(torch: Any, module: Any) -> str | None:
    """The device of a model whose floating parameters are all fp32; None for any other module."""
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    if not parameters or any(p.dtype != torch.float32 for p in parameters):
        return None
    return None if parameters[0].is_meta else str(parameters[0].device.type)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def to_fp32(torch: Any, result: Any) -> Any:
    """The result with its half-precision tensors in fp32, of the same type all the way down."""
    if isinstance(result, torch.Tensor):
        if result.dtype not in (torch.bfloat16, torch.float16):
            return result
        full = result.float()
        halves(torch).remember(full, result)
        return full
    if isinstance(result, tuple):
        items = [to_fp32(torch, item) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    if isinstance(result, list):
        return type(result)(to_fp32(torch, item) for item in result)
    if isinstance(result, MutableMapping):  # the outputs of transformers too
        changed = copy.copy(result)
        for key, item in result.items():
            changed[key] = to_fp32(torch, item)
        return changed
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        made = copy.copy(result)
        for one in dataclasses.fields(result):
            object.__setattr__(made, one.name, to_fp32(torch, getattr(result, one.name)))
        return made
    return result


def autocast_edits(workload: Workload, dtype: str) -> tuple[Edit, ...]:
    """From the first call of a model up to `backward`, under `with`.

    The loss is then computed in autocast too, where torch takes cross entropy and its like in fp32,
    but refuses a binary cross-entropy of probabilities on a GPU.
    """
    head = f'with torch.autocast("{workload.device}", dtype=torch.{dtype}):'
    models = models_to_edit(workload, _is_in_fp32)
    is_refused = any(one.facts.get("of_probabilities") for one in workload.backwards)
    if is_refused and workload.device != "cpu":
        words = f"{head} around the model's call alone, and what it returns .float() for the loss"
        return tuple(tell(site, words) for site in dict.fromkeys(one.site for one in models))
    end = workload.backwards[0].site if workload.backwards else None
    sites = sorted({one.site for one in models if one.site}, key=lambda s: (s.file, s.line))
    return (wrap_block(sites[0] if sites else None, end, head, also=sites[1:]),)


def _is_in_fp32(facts: dict[str, Any]) -> bool:
    return facts.get("dtypes") == ["float32"] and not facts.get("in_autocast")


def best_with(workload: Workload) -> tuple[str, ...]:
    """For convolutions, the order in which tensor cores take half precision without a copy.

    In torch's own order the copies eat most of what the products gain.
    """
    is_convolutional = workload.n_modules("Conv2d") > workload.n_modules("Linear")
    return ("channels_last",) if workload.device == "cuda" and is_convolutional else ()


def has_bf16(workload: Workload) -> Decision:
    """Whether the device has arithmetic in bf16."""
    if workload.device == "cpu" and not CPU_FLAGS & workload.cpu_flags:
        return Decision(False, "this CPU has no bf16 instructions")
    is_old = workload.capability is not None and workload.capability < (8, 0)
    if workload.device == "cuda" and not workload.is_rocm and is_old:
        return Decision(False, f"{workload.device_name} has no bf16; Ampere and newer have")
    return Decision(True, "the device has bf16 arithmetic")


def in_fp32(workload: Workload) -> Decision:
    """Whether a model computes in fp32, so that half precision is there to be gained."""
    if not workload.models:
        return Decision(False, "no model was seen in training")
    if all(one.facts.get("in_autocast") for one in workload.models):
        return Decision(False, "the script runs its model in autocast already")
    if all(one.facts.get("dtypes") != ["float32"] for one in workload.models):
        return Decision(False, "the parameters are not in fp32")
    return Decision(True, "the model computes in fp32")
