"""The training as a Run, on all its ranks, whatever has started them.

Where `hotlap time` (or `hotlap train` alone) stands above, that records it, and nothing is done
here. Else the ranks do it themselves: rank 0 makes the folder and tells the others. A training
never stops because its recording does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from hotlap.chronometer import headless, hooks
from hotlap.chronometer.clock import now_ns
from hotlap.chronometer.collect import kernel_oom_kills
from hotlap.chronometer.session import Session, Settings
from hotlap.distributed.launch import Launch
from hotlap.errors import UsageError
from hotlap.records.store import default_runs_dir


def watch() -> Session | None:
    """Have torch's calls seen from now on, unless a launcher of hotlap's has seen to it.

    Called before anything is made of torch: dynamo has to find the hooks in their place.
    """
    if Settings.VARIABLE in os.environ:
        return None
    try:
        return hooks.install(torch, Settings(folder=""))
    except Exception as error:
        _say(error)
        return None


class Recording:
    """A `with` block around the training, entered by all ranks once they have met."""

    def __init__(self, session: Session | None, launch: Launch, words: Sequence[str]) -> None:
        self._session, self._launch = session, launch
        self._command = (sys.executable, "-m", "hotlap.trainer", *words)
        self._folder: Path | None = None
        self._begin_ns, self._oom_kills = now_ns(), kernel_oom_kills()
        self.code = 0
        """What the process will exit with, where no exception says otherwise."""

    def __enter__(self) -> Recording:
        if self._session is not None:
            self._folder = self._agree_on_folder()
        if self._session is not None and self._folder is not None:
            self._session.record_into(self._folder)
        return self

    def _agree_on_folder(self) -> Path | None:
        chosen = [self._make_folder() if self._launch.rank == 0 else ""]
        if self._launch.world_size > 1:
            dist.broadcast_object_list(chosen, src=0, device=torch.device("cpu"))
        return Path(chosen[0]) if chosen[0] else None

    def _make_folder(self) -> str:
        try:
            return str(headless.begin(default_runs_dir(), self._command, self._launch.world_size))
        except Exception as error:
            _say(error)
            return ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is None or self._folder is None:
            return
        try:
            # Inside of the exception, if there is one: whether memory ran out is read from it.
            self._session.close(however_long=True)
            if self._launch.rank == 0:
                total_s = (now_ns() - self._begin_ns) / 1e9
                code = self.code if error is None else exit_code_of(error)
                headless.finish(self._folder, code, total_s, self._oom_kills)
                print(f"recorded as {self._folder}", file=sys.stderr, flush=True)
        except Exception as broken:
            _say(broken)


def exit_code_of(error: BaseException) -> int:
    """What Python, or this package, leaves with after an exception."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0
    return 1


def _say(error: Exception) -> None:
    print(f"hotlap train: this training is not recorded: {error}", file=sys.stderr, flush=True)
