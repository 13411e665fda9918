"""Files that are opened while it trains: each is one of a shared file system's few operations.

Loader workers are looked into as well. They end without a word, so each tells its count now and
then.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from hotlap.doctor.inside.watch import Watch
from hotlap.levers.common.workload import EVENTS_SUFFIX

TELL_EVERY = 32
NOT_DATA = (".py", ".pyc", ".so", EVENTS_SUFFIX, ".tape", ".facts", ".cut")
NOT_FILES = ("/proc/", "/sys/", "/dev/")


def install(watch: Watch) -> None:
    """Listen to the interpreter's own announcements."""
    counter = _Counter(watch)
    watch.facts["opens"] = lambda: {"n": counter.n, "folder": counter.folder}
    sys.addaudithook(counter.hear)


class _Counter:
    def __init__(self, watch: Watch) -> None:
        self.watch, self.pid = watch, os.getpid()
        self.n, self.folder, self.told = 0, "", TELL_EVERY

    def hear(self, event: str, arguments: Any) -> None:
        """Every audited event of the process; those that open a data file count."""
        if event != "open" or not isinstance(arguments[0], str):
            return
        path = arguments[0]
        if path.endswith(NOT_DATA) or path.startswith(NOT_FILES):
            return
        if os.getpid() != self.pid:  # a worker, forked from the one that was counting
            self.pid, self.n, self.told = os.getpid(), 0, TELL_EVERY
        if self.watch.n_steps() or self._is_worker():
            self.n += 1
            self.folder = os.path.dirname(os.path.abspath(path))
            if self.n >= self.told and self._is_worker():
                self.told += TELL_EVERY
                facts = {"n": self.n, "folder": self.folder, "process": str(self.pid)}
                self.watch.tell_apart("opens", facts)

    @staticmethod
    def _is_worker() -> bool:
        worker = sys.modules.get("torch.utils.data._utils.worker")
        return worker is not None and worker._worker_info is not None
