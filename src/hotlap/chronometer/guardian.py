"""A small process beside the launcher that answers two questions only a sibling can.

Was a signal sent to the launcher alone, or to its whole process group or job? Then the command has
it already, and must not get it twice: a second SIGTERM turns an orderly end into an abrupt one.
The guardian stands in the same group; what it receives too was sent to all.

Is the launcher still alive? SIGKILL cannot be forwarded; if the launcher is gone, the guardian
ends the command as the signal would have, and finishes the Run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable

REPORT_WAIT_S = 0.15
PARENT_CHECK_S = 0.5


class Guardian:
    """Forked from the launcher, before any thread exists there; signals are blocked in both."""

    def __init__(
        self, signals: Iterable[signal.Signals], command_pid: int, finish: Callable[[], None]
    ) -> None:
        self._reports, reports = os.pipe()
        launcher = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._watch(set(signals), launcher, command_pid, reports, finish)
            finally:
                os._exit(0)
        os.close(reports)

    def also_received(self, number: int) -> bool:
        """Whether a signal that reached the launcher has reached the guardian as well."""
        deadline = time.monotonic() + REPORT_WAIT_S
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._reports], [], [], left)
            if ready and number in os.read(self._reports, 64):
                return True
        return False

    def dismiss(self) -> None:
        """End the guardian."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reports)

    @staticmethod
    def _watch(
        signals: set[signal.Signals],
        launcher: int,
        command_pid: int,
        reports: int,
        finish: Callable[[], None],
    ) -> None:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        while os.getppid() == launcher:
            received = signal.sigtimedwait(signals, PARENT_CHECK_S)
            if received is not None:
                os.write(reports, bytes([received.si_signo]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(command_pid, signal.SIGKILL)
        finish()
