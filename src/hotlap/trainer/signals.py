"""What ranks have to agree on between two steps: to leave, or to write a checkpoint by the clock.

A handler of SIGTERM or SIGUSR1 only remembers the signal. It may reach one rank a step before
another, and clocks differ: so ranks talk, every few steps, over the CPU.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from hotlap.chronometer.clock import now_ns

BETWEEN_TALKS_NS = 2_000_000_000


class StopSignals:
    """Whether this process was asked to leave."""

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name


class Agreement:
    """Makes one answer of those of all ranks; in one process, its own."""

    def __init__(self, group: dist.ProcessGroup | None, step: int) -> None:
        self._group = group
        self._last_step, self._last_ns = step, now_ns()
        self._next_step = step + 1

    def ask(self, step: int, *mine: bool) -> list[bool] | None:
        """For each question, whether any rank says yes; None where ranks do not talk yet.

        Called by all ranks after every step.
        """
        if self._group is None:
            return list(mine)
        if step < self._next_step:
            return None
        step_ns = (now_ns() - self._last_ns) / max(step - self._last_step, 1)
        # The rank that would wait the fewest steps decides for all of them.
        n_steps = max(1, int(BETWEEN_TALKS_NS / max(step_ns, 1.0)))
        said = torch.tensor([*map(int, mine), -n_steps])
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        *answers, negative = said.tolist()
        self._last_step, self._last_ns, self._next_step = step, now_ns(), step - int(negative)
        return [bool(answer) for answer in answers]
