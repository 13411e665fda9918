"""The windows: torch's profiler is started after the warm-up steps and stopped again.

Called at the end of every update. Whatever breaks here closes the window, is named in the Profile,
and never reaches the training.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotlap.chronometer import marks
from hotlap.chronometer.dynamo import hide_from_dynamo
from hotlap.chronometer.period import smallest_period
from hotlap.chronometer.profile.compiler import watch_compiler
from hotlap.chronometer.profile.files import LINES_SUFFIX, SITES_SUFFIX, TIMES_SUFFIX, ProfileLog
from hotlap.chronometer.profile.memory import MemoryWatch
from hotlap.chronometer.profile.sites import find_sites, module_names
from hotlap.chronometer.profile.trace import STEP_MARK

MAX_EVENTS = 1_000_000
"""A window with more events is not written: its file would be larger than the memory to read it."""
MODULE = __name__
"""For the variable by which the launcher has this module installed."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the launcher asks of the profiled processes."""

    warmup: int = 8
    steps: int = 4
    line_steps: int = 1
    """Steps with stacks; 0 is none."""
    ends_run: bool = False
    """Whether the command is ended after its profile."""

    VARIABLE = "HOTLAP_PROFILE"

    def to_environment(self) -> dict[str, str]:
        """The variables that carry the orders."""
        return {
            Orders.VARIABLE: json.dumps(asdict(self)),
            "HOTLAP_INSTALL": MODULE,
            # Kineto tells of every start and stop on stderr, which is the command's.
            "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99"),
        }

    @staticmethod
    def from_environment() -> Orders:
        """The orders of this process."""
        return Orders(**json.loads(os.environ[Orders.VARIABLE]))


def install(torch: Any, session: Any) -> None:
    """Have this process profiled."""
    hide_from_dynamo(torch, __package__ or MODULE)
    windows = Windows(torch, session, Orders.from_environment())
    session.on_step = windows.step_ended
    session.on_close = windows.process_ends
    os.register_at_fork(after_in_child=windows.after_fork)


class Windows:
    """The two windows of one process, and where between them it is."""

    def __init__(self, torch: Any, session: Any, orders: Orders) -> None:
        self._torch, self._session, self._orders = torch, session, orders
        self._memory = MemoryWatch(torch, session)
        self._begin()
        for watch in (self._watch_compiler, self._give_way, self._memory.watch):
            try:
                watch()
            except Exception as error:
                self._log.write(note=f"a part of the profile is missing: {error!r}")

    def _begin(self) -> None:
        self._log = ProfileLog()
        self._profiler: Any = None
        self._suffix = ""
        self._plan = [
            (TIMES_SUFFIX, self._orders.steps),
            (LINES_SUFFIX, self._orders.line_steps),
        ]
        self._updates = 0
        self._next_at: int | None = None
        """The update after which the next window begins, or the open one ends."""
        self._is_over = False

    def after_fork(self) -> None:
        """A forked child starts over."""
        self._memory.forget()
        self._begin()

    def _watch_compiler(self) -> None:
        watch_compiler(self._torch, lambda **entry: self._log.write(**entry))

    def _give_way(self) -> None:
        """Only one profiler can run in a process: ours gives way to one of the script's."""
        profiler_class = self._torch.autograd.profiler.profile
        prepare = profiler_class._prepare_trace
        windows = self

        @functools.wraps(prepare)
        def prepare_trace(this: Any) -> Any:
            if windows._profiler is not None and this is not windows._profiler.profiler:
                windows._abandon("the script started a profiler of its own")
            return prepare(this)

        profiler_class._prepare_trace = prepare_trace

    # The steps ------------------------------------------------------------------------------

    def step_ended(self) -> None:
        """An update was made."""
        try:
            self._step_ended()
        except Exception as error:
            self._abandon(f"{type(error).__name__}: {error}")
        if self._is_over and self._orders.ends_run:
            self._session.cut_run()

    def _step_ended(self) -> None:
        session = self._session
        self._updates += 1
        if self._updates == 1 and session.facts is not None:
            self._log.open(session.facts.path.with_suffix(""))
            self._log.write(orders=asdict(self._orders))
        if self._is_over:
            # The step that has just ended still held the work of closing the window.
            session.end_flags &= ~(marks.PROFILED << 8)
            session.on_step = None
            return
        if session.device is not None and self._torch.cuda.is_current_stream_capturing():
            return  # a graph under capture takes neither a synchronisation nor a profiler
        if self._next_at is None:
            self._next_at = self._orders.warmup * self._updates_a_step()
        if self._profiler is not None:
            if (self._next_at - self._updates) % self._updates_a_step() == 0:
                self._mark_step()
        elif not self._is_traced_by_the_script():
            self._memory.sample()
        if self._updates < self._next_at:
            return
        if self._profiler is not None:
            self._close()
            # This runs inside the range that torch puts around an optimizer's step. Its end is
            # written into the profiler that saw its begin: one that is opened here would have it
            # written into memory that is no longer there. So there is a step in between.
            self._next_at = self._updates + self._updates_a_step()
            if not self._plan:
                self._finish()
        elif self._plan:
            self._open(*self._plan.pop(0))
        else:
            self._finish()

    def _updates_a_step(self) -> int:
        """Several optimizers make one step together."""
        session = self._session
        return smallest_period(session.boundaries) if len(session.optimizers) > 1 else 1

    def _is_traced_by_the_script(self) -> bool:
        return bool(self._torch.autograd._profiler_enabled())

    def _open(self, suffix: str, n_steps: int) -> None:
        if n_steps == 0:
            self._finish()
            return
        if self._is_traced_by_the_script():
            self._plan.insert(0, (suffix, n_steps))
            self._log.write(note="the script ran a profiler of its own: the window came after it")
            return
        torch = self._torch
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._session.device is not None:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        has_stacks = suffix == LINES_SUFFIX
        self._profiler = torch.profiler.profile(
            activities=activities, record_shapes=True, with_stack=has_stacks
        )
        self._suffix = suffix
        self._next_at = self._updates + n_steps * self._updates_a_step()
        first = self._updates // self._updates_a_step() + 1
        self._log.write(window=suffix, first_step=first, device=self._device_name())
        self._session.end_flags |= marks.PROFILED << 8
        self._synchronise()
        self._profiler.start()
        self._mark_step()

    def _mark_step(self) -> None:
        with self._torch.profiler.record_function(STEP_MARK):
            pass

    def _device_name(self) -> str:
        device = self._session.device
        return "cpu" if device is None else str(self._torch.cuda.get_device_name())

    def _synchronise(self) -> None:
        if self._session.device is not None:
            self._torch.cuda.synchronize()

    def _close(self) -> None:
        """Stop the profiler and bring its events to disk."""
        self._synchronise()
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        results = profiler.profiler.kineto_results
        n_events = len(results.events())
        if n_events > MAX_EVENTS:
            self._log.write(
                note=f"a window of {n_events} events was not kept, the most is {MAX_EVENTS}: "
                "profile fewer steps with --steps, or leave the stacks out with --no-stacks"
            )
            return
        path = self._path(self._suffix)
        results.save(str(path))
        if self._suffix == LINES_SUFFIX:
            sites = find_sites(results, module_names(self._memory.modules))
            self._path(SITES_SUFFIX).write_text(json.dumps(sites), encoding="utf-8")
        self._log.write(closed=self._suffix, events=n_events)

    def _path(self, suffix: str) -> Path:
        path = self._session.facts.path
        return Path(path.with_name(path.stem + suffix))

    def _finish(self) -> None:
        self._is_over = True
        self._log.write(memory=self._memory.account())

    def process_ends(self) -> None:
        """A profiler that is still on when torch is taken down brings the process to a crash."""
        if self._profiler is not None:
            self._abandon("the training ended inside the window")

    def _abandon(self, why: str) -> None:
        """Give the profile up, and leave the training alone."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with contextlib.suppress(Exception):
                profiler.stop()
        if not self._is_over:
            self._is_over = True
            self._log.write(note=f"the profile was given up in step {self._updates}: {why}")
