"""Who makes a loader or an optimizer, and who trains: the script itself, or a framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

NO_MAKERS = {"torch", "hotlap", *sys.stdlib_module_names}
TRAINERS = {
    "transformers.trainer": "transformers",
    "pytorch_lightning.trainer": "lightning",
    "lightning.pytorch.trainer": "lightning",
}
"""Modules with a trainer that makes the loop, and the name that it goes by."""


def made_by(is_users_file: Callable[[str], bool]) -> str:
    """The package whose code makes something now; empty where it is the user's own."""
    for frame in _frames():
        if is_users_file(frame.f_code.co_filename):
            return ""
        package = _module(frame).partition(".")[0]
        if package not in NO_MAKERS:
            return package
    return ""


def trainer() -> str:
    """The framework whose trainer makes the call that is going on; empty for a loop."""
    for frame in _frames():
        for module, name in TRAINERS.items():
            if f"{_module(frame)}.".startswith(f"{module}."):
                return name
    return ""


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
