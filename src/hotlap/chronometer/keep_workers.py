"""Workers of a DataLoader that live through a scheduler's signals, until the training has left.

A scheduler that wants a job's nodes back may send SIGTERM to every process of it. torch's workers
die of that at once, and the training with them, before it has written its checkpoint. Here

    worker        hears SIGTERM and SIGUSR1, and goes on
    training      ends its workers by SIGKILL, for which torch and multiprocessing take SIGTERM:
                  without that, a training that leaves a loader open would wait for it for ever
    fork server   which is the workers' parent where one is used: goes on as well; and so does a
                  worker that is still being started

A worker still ends with the process that started it: torch's own watchdog sees to that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LOOPS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker")
"""Modules with a `_worker_loop` whose parent is seen here; one that is not keeps torch's ways."""


def install(torch: Any) -> None:
    """Have all loaders of this process keep their workers; a second call changes nothing."""
    from torch.utils.data._utils import signal_handling

    if not hasattr(signal_handling, "hotlap_parent"):
        parent = _Parent(signal_handling)
        signal_handling.hotlap_parent = parent
        parent.install()
        _install_in_workers(signal_handling)


def _install_in_workers(handling: Any) -> None:
    """After torch's own handlers and before `worker_init_fn`, which may still choose otherwise."""
    set_handlers = handling._set_worker_signal_handlers

    def set_worker_signal_handlers() -> None:
        set_handlers()
        if sys._getframe(1).f_globals.get("__name__") in LOOPS:
            with contextlib.suppress(Exception):
                outlive_signals()

    handling._set_worker_signal_handlers = set_worker_signal_handlers


def outlive_signals(worker: int = 0) -> None:
    """In a worker whose parent has the hooks."""
    # Not SIG_IGN: programs that a data set starts would inherit it.
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)  # libraries that wait for a file need not know


def _is_loop(target: Any) -> bool:
    return getattr(target, "__name__", "") == "_worker_loop" and target.__module__ in LOOPS


class _Parent:
    """The process that has the loaders: whoever ends a worker from here means it."""

    def __init__(self, handling: Any) -> None:
        self._forget, self._watch = handling._remove_worker_pids, handling._set_worker_pids
        self._handling = handling
        self._loaders: dict[int, int] = {}
        """By a worker's pid, the key under which torch watches it."""

    def install(self) -> None:
        """See workers being started, and torch being told of them."""
        from multiprocessing.process import BaseProcess

        start = BaseProcess.start

        def start_and_keep(process: Any) -> None:
            is_worker = _is_loop(getattr(process, "_target", None))
            start(process)
            if is_worker:
                with contextlib.suppress(Exception):
                    self._keep(process._popen)

        def set_worker_pids(key: int, pids: tuple[int, ...]) -> None:
            self._watch(key, pids)
            others = {pid: other for pid, other in self._loaders.items() if other != key}
            self._loaders = {**others, **dict.fromkeys(pids, key)}

        BaseProcess.start = start_and_keep  # type: ignore[method-assign, assignment]
        self._handling._set_worker_pids = set_worker_pids

    def _keep(self, popen: Any) -> None:
        def terminate() -> None:
            with contextlib.suppress(Exception):
                self._expect_the_end_of(popen.pid)
            popen.kill()

        popen.terminate = terminate

    def _expect_the_end_of(self, pid: int) -> None:
        """A worker that is killed is an error to torch while it watches it."""
        key = self._loaders[pid]
        self._forget(key)
        self._watch(key, ())


def shelter_start() -> None:
    """In a fork server, which goes on, and in what Python starts anew for a process.

    Until it is known what that process is, which takes an import of torch, it notes its signals: a
    worker goes on, and any other process hears then what it would have heard before.
    """
    from multiprocessing.process import BaseProcess

    heard: list[int] = []
    bootstrap = BaseProcess._bootstrap  # type: ignore[attr-defined]

    def note(number: int, frame: object) -> None:
        heard.append(number)

    def hear_again() -> None:
        for number in SIGNALS:
            if signal.getsignal(number) is note:
                signal.signal(number, signal.SIG_DFL)
        for one in heard:
            os.kill(os.getpid(), one)

    def bootstrap_knowing(process: Any, *arguments: Any, **options: Any) -> Any:
        if not _is_loop(getattr(process, "_target", None)):
            hear_again()
        return bootstrap(process, *arguments, **options)

    for number in SIGNALS:
        signal.signal(number, note)
    BaseProcess._bootstrap = bootstrap_knowing  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=heard.clear)
