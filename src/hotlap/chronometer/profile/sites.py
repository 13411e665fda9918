"""Which line of the user's code an operator comes from, and which module was running.

Kineto's event tree knows, for every Python call inside the window, the line that it was made from.
An operator's site is the innermost such line in the user's own code; where all lines above it are
a library's, it is the innermost one of those. An operator of the backward has the site of the
operator of the forward that it belongs to: autograd gives both the same sequence number.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
OWN_CODE = str(Path(__file__).parents[1])
"""The chronometer: what it does in a step is not the user's doing."""
PASSED_ON = "move"
"""The one function of it that stands in the place of torch's own (`Tensor.to`, `.cuda`, `.copy_`):
what it calls itself is the user's doing."""

Owner = Literal["user", "library", "torch", "hotlap"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the walk through the tree is."""

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    owner: Owner = "torch"
    is_backward: bool = False


def module_names(modules: Iterable[Any]) -> dict[int, str]:
    """The name of every module in those that the loop calls, by its address."""
    names: dict[int, str] = {}
    for root in modules:
        for name, module in root.named_modules():
            names.setdefault(id(module), name or type(module).__name__)
    return names


def find_sites(results: Any, names: dict[int, str]) -> dict[str, Any]:
    """The sites, and which operator (by its external id in the trace) has which."""
    walk = _Walk(names)
    roots = results.experimental_event_tree()
    walk.run(roots)
    walk.resolve_backward(roots)
    return {
        "sites": [
            {
                "file": shown(place.file),
                "line": place.line,
                "function": place.function,
                "module": place.module,
                "owner": place.owner,
                "is_backward": place.is_backward,
            }
            for place in walk.places
        ],
        "operators": walk.operators,
        "calls": walk.calls,
    }


class _Walk:
    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self.places: dict[Place, int] = {}
        self.operators: dict[int, int] = {}
        self.calls: dict[int, int] = {}
        """Calls of the device's runtime that wait, by their correlation id."""
        self._forward: dict[int, tuple[int, Place]] = {}
        """By sequence number: when the operator began, and its place."""

    def run(self, roots: Iterable[Any]) -> None:
        """Find the place of every operator, those of the backward as if they had no forward."""
        stack = [(event, Place()) for event in roots]
        while stack:
            event, place = stack.pop()
            fields = event.extra_fields
            kind = type(fields).__name__
            if kind.endswith(("PyCall", "PyCCall")):
                place = self._enter_call(fields, place)
            elif kind.endswith("TorchOp"):
                if event.name.startswith(AUTOGRAD_NODE):
                    continue  # resolved afterwards, when all of the forward is known
                self._note(event, place)
                self._keep_forward(event, fields, place)
            elif event.name.endswith("Synchronize"):
                self.calls[event.correlation_id] = self._index(place)
            stack.extend((child, place) for child in event.children)

    def resolve_backward(self, roots: Iterable[Any]) -> None:
        """Give the operators below an autograd node the place of their forward."""
        stack = [(event, Place(), False) for event in roots]
        while stack:
            event, place, is_backward = stack.pop()
            fields = event.extra_fields
            kind = type(fields).__name__
            if kind.endswith(("PyCall", "PyCCall")):
                place = self._enter_call(fields, place)
            elif kind.endswith("TorchOp"):
                if event.name.startswith(AUTOGRAD_NODE):
                    is_backward = True
                    _, place = self._forward.get(fields.sequence_number, (0, place))
                    place = replace(place, is_backward=True)
                if is_backward:
                    self._note(event, place)
            stack.extend((child, place, is_backward) for child in event.children)

    def _note(self, event: Any, place: Place) -> None:
        self.operators[event.correlation_id] = self._index(place)

    def _index(self, place: Place) -> int:
        return self.places.setdefault(place, len(self.places))

    def _keep_forward(self, event: Any, fields: Any, place: Place) -> None:
        """The last operator to begin with a sequence number is the one that autograd recorded."""
        number = fields.sequence_number
        if number >= 0 and self._forward.get(number, (0, place))[0] <= event.start_time_ns:
            self._forward[number] = (event.start_time_ns, place)

    def _enter_call(self, fields: Any, place: Place) -> Place:
        module = getattr(fields, "module", None)
        if module is not None:
            own = self._names.get(module.self_ptr) or str(module.cls_name)
            place = replace(place, module=own)
        caller = fields.caller
        file = resolve(caller.file_name)
        owner = owner_of(file)
        if owner == "torch" or (owner == "library" and place.owner == "user"):
            return place
        if owner == "hotlap" and caller.function_name == PASSED_ON:
            return place
        return replace(
            place, file=file, line=caller.line_number, function=caller.function_name, owner=owner
        )


@cache
def resolve(name: str) -> str:
    """The whole path of a file that the profiler names by the part below a folder of sys.path."""
    if name.startswith(("<", "/")):
        return name
    for folder in (*site.getsitepackages(), site.getusersitepackages(), *sys.path):
        path = os.path.join(os.path.abspath(folder or "."), name)
        if os.path.isfile(path):
            return path
    return name


@cache
def owner_of(file: str) -> Owner:
    """Whose code a file is."""
    if file.startswith(OWN_CODE):
        return "hotlap"
    torch = sys.modules.get("torch")
    if torch is not None and file.startswith(os.path.dirname(str(torch.__file__)) + os.sep):
        return "torch"
    if file.startswith("<"):
        return "torch"
    paths = sysconfig.get_paths()
    if file.startswith((paths["purelib"], paths["platlib"], *site.getsitepackages())):
        return "library"
    if file.startswith((paths["stdlib"], paths["platstdlib"])) or not os.path.isabs(file):
        return "torch"
    return "user"


def shown(file: str) -> str:
    """A path as a person reads it: relative to the working folder where it is below it."""
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside
