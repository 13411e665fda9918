"""One watched process: counts by name and line, and the event that tells them."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import util as multiprocessing_util
from threading import get_ident
from typing import Any

from hotlap.levers.common.process import is_users_file

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
MAX_FILES = 200
"""Of the user's own modules; a project with more is told with the first of them."""

Fact = Callable[[], Any]


class Watch:
    """What is seen of one training process."""

    def __init__(self, torch: Any, session: Any, report: Callable[..., None]) -> None:
        self.torch, self.session, self._report = torch, session, report
        self.is_training = True
        """Whether the model is in training mode, as the loop last said."""
        self.facts: dict[str, Fact] = {"files": self._files, "n_steps": self.n_steps}
        """By name, what is told at the end."""
        self.after_first_step: list[Callable[[], None]] = []
        """Done once, before the model is called again."""
        self._counts: dict[tuple[str, str, int, bool], list[int]] = {}
        self._busy = False
        self._is_open = False

    def n_steps(self) -> int:
        """Updates so far."""
        return len(self.session.boundaries)

    def open(self) -> None:
        """It trains: have its story told at its end, and a first part of it now."""
        if self._is_open:
            return
        self._is_open = True
        self.facts["calls"] = self._calls
        self.tell()
        atexit.register(self.tell)
        multiprocessing_util.Finalize(None, self.tell, exitpriority=0)

    def tell(self) -> None:
        """Write what is known; the last word of a process counts."""
        facts = {}
        for name, fact in self.facts.items():
            found = self.try_to(fact)
            if found is not None:
                facts[name] = found
        self._report(seen="habits", facts=facts)

    def tell_apart(self, what: str, facts: dict[str, Any]) -> None:
        """Write an event of its own, from a process that does not train."""
        self._report(seen=what, facts=facts)

    @staticmethod
    def try_to(function: Callable[..., Any], *arguments: Any) -> Any:
        """Fail open."""
        try:
            return function(*arguments)
        except Exception:
            return None

    # Calls by line ----------------------------------------------------------------------------

    def timed(
        self,
        owner: Any,
        name: str,
        label: str | Callable[..., str | None],
        is_meant: Callable[..., bool] | None = None,
    ) -> None:
        """Count calls of a function, with the time they take; those alone that are meant.

        Calls of several kinds have their label given by their arguments, none where not meant.
        """
        original = getattr(owner, name)
        is_tracing = self.torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._busy or not self._is_open or is_tracing() or not self._is_by_user():
                return original(*args, **kwargs)
            if is_meant is not None and not self.try_to(is_meant, args, kwargs):
                return original(*args, **kwargs)
            kind = label if isinstance(label, str) else self.try_to(label, args, kwargs)
            if kind is None:
                return original(*args, **kwargs)
            self._busy = True
            began = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._busy = False
                self.try_to(self.count, kind, time.perf_counter_ns() - began)

        setattr(owner, name, call)

    def _is_by_user(self) -> bool:
        """Whether the training's own thread makes the call, and not hotlap for its own sake."""
        caller = sys._getframe(2).f_code.co_filename
        return self.session.thread == get_ident() and not caller.startswith(HERE)

    def count(self, label: str, took_ns: int) -> None:
        """One more call, of the line of the user's that led here."""
        if not self.n_steps():
            return  # before the loop, or in its first step, which prepares much
        site = site_of(sys._getframe(1))
        if site is None:
            return
        entry = self._counts.setdefault((label, *site, self.is_training), [0, 0])
        entry[0] += 1
        entry[1] += took_ns

    def _calls(self) -> list[list[Any]]:
        return [[*key, *counts] for key, counts in self._counts.items()]

    # The user's files -------------------------------------------------------------------------

    def _files(self) -> list[str]:
        """The user's own modules that were executed, the script first."""
        modules = list(sys.modules.items())
        modules.sort(key=lambda pair: pair[0] not in ("__main__", "__mp_main__"))
        paths = [getattr(module, "__file__", None) for _, module in modules]
        own = [os.path.abspath(path) for path in paths if path and is_users_file(path)]
        own = [path for path in own if os.path.isfile(path)]
        return [path for path in dict.fromkeys(own) if path.endswith(".py")][:MAX_FILES]


def site_of(frame: Any) -> tuple[str, int] | None:
    """The innermost line of the user's own source, from a frame outwards."""
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return None
