"""Files that a trial writes outside the copy of the folder it runs in: a user is told of them.

Seen are those that Python or `torch.save` opens by name. What a library opens in C is not.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_TOLD = 8
"""Files: of a training that writes one a step the first ones say enough."""
NOT_FILES = ("/dev/", "/proc/", "/sys/")

Tell = Callable[[str], None]


def watch_writes(torch: Any, tell: Tell) -> None:
    """Tell of each file outside the present folder once, when it is opened to be written."""
    inside = (os.path.realpath(os.getcwd()), os.path.realpath(tempfile.gettempdir()))
    told: set[str] = set()

    def see(file: Any) -> None:
        if not isinstance(file, (str, os.PathLike)) or len(told) >= MOST_TOLD:
            return
        path = os.path.realpath(os.fspath(file))
        is_ours = f"{path}/".startswith((*(f"{folder}/" for folder in inside), *NOT_FILES))
        # Caches lie in hidden folders: they are no training's output.
        if is_ours or path in told or any(part.startswith(".") for part in Path(path).parts):
            return
        told.add(path)
        tell(path)

    builtins.open = io.open = _seeing(io.open, _opened_to_write, see)
    torch.save = _seeing(torch.save, _saved_to, see)


def _opened_to_write(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    return None if set(mode).isdisjoint("wax+") else file


def _saved_to(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    return f


def _seeing(original: Any, written: Callable[..., Any], see: Callable[[Any], None]) -> Any:
    """The function, with a look at the file that a call of it writes."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Whatever is wrong with a call, the function itself says it best.
        with contextlib.suppress(Exception):
            see(written(*args, **kwargs))
        return original(*args, **kwargs)

    return call
