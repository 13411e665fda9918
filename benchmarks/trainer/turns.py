"""Complete training loops that take turns on one device, a block of steps each.

Every loop is written as its user would write it, runs in a thread of its own and knows nothing of
the others. It asks for batches, and between two batches it can be made to wait: so one loop works
at a time, and all of them see the same clocks, temperature and memory.

A block is timed from one asking for a batch to the same asking n steps later, the device idle at
both ends: whatever a loop does for a step is inside, wherever it does it. Loops come in the order
A B B A A B B A …, so that a drift falls on all alike. A is what the others are compared with: each
of their blocks with its own of the same round.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch

Item = TypeVar("Item")
Loop = Callable[[Callable[[Iterable[Item]], Iterator[Item]]], None]
"""A training loop; it is given the function that makes its batches come in turns."""

# Student's t, 97.5 %, by degrees of freedom; beyond the table the next smaller entry is used.
STUDENT_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 15: 2.13, 20: 2.09}


class Done(Exception):
    """Raised in a loop where it asks for a batch after the last block."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean or a median with its 95 % interval."""

    middle: float
    low: float
    high: float

    def text(self, form: str = ".4f") -> str:
        """`0.9979 [0.9968, 0.9990]`."""
        return f"{self.middle:{form}} [{self.low:{form}}, {self.high:{form}}]"


def interval(values: list[float]) -> Interval:
    """Student's t over values of which each stands for itself; two at least."""
    degrees = len(values) - 1
    t = STUDENT_T[max(known for known in STUDENT_T if known <= degrees)]
    mean, half = statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def median_interval(values: list[float]) -> Interval:
    """The median, and the order statistics that hold it 95 times of 100, whatever the outliers."""
    ordered, n = sorted(values), len(values)
    below = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    return Interval(statistics.median(ordered), ordered[below], ordered[n - 1 - below])


@dataclass(slots=True)
class Turns:
    """Whose turn it is, and how long each block took."""

    device: str
    names: list[str]
    n_rounds: int
    """Blocks of each loop."""
    block_s: float
    """Seconds a block should take."""
    n_warmup: int = 20
    """Steps of each loop before anything is timed; compilers and caches settle in them."""
    n_steps: int = 0
    """A block; set after the warm-up, by the first loop's speed."""
    step_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds a step of each block."""
    errors: list[BaseException] = field(default_factory=list)
    _turn: dict[str, threading.Event] = field(default_factory=dict)
    _plan: Iterator[tuple[str, int]] = field(default_factory=lambda: iter(()))
    _n_left: int = 0
    _n_block: int = 0
    _began: float = 0.0

    def run(self, loops: dict[str, Loop[Item]]) -> None:
        """Run all loops to the last block."""
        self.step_s = {name: [] for name in self.names}
        self._turn = {name: threading.Event() for name in self.names}
        self._plan = self._order()
        threads = [
            threading.Thread(target=self._guarded, args=(name, loops[name]), daemon=True)
            for name in self.names
        ]
        self._hand_over()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, name: str, loop: Loop[Item]) -> None:
        try:
            loop(lambda batches: self._paced(name, batches))
            self.errors.append(RuntimeError(f"the loop '{name}' ended before the last block"))
        except Done:
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            for event in self._turn.values():  # nobody waits for a loop that is no more
                event.set()

    def _order(self) -> Iterator[tuple[str, int]]:
        """Who comes next, and with how many steps; the first blocks are not timed."""
        for name in self.names:
            yield name, self.n_warmup
        yield self.names[0], self.n_warmup  # by this one the length of a block is chosen
        step_s = max(self.step_s[self.names[0]][-1], 1e-9)
        self.n_steps = max(2, math.ceil(self.block_s / step_s))
        for blocks in self.step_s.values():
            blocks.clear()
        for i in range(self.n_rounds):
            for name in self.names if i % 2 == 0 else reversed(self.names):
                yield name, self.n_steps

    def _hand_over(self) -> None:
        """Let the loop go on whose block is next; all of them, to their end, after the last one."""
        name, self._n_block = next(self._plan, ("", 0))
        self._n_left = self._n_block
        for other, event in self._turn.items():
            if name in ("", other):
                event.set()

    def _paced(self, name: str, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches, each when it is this loop's turn."""
        source = iter(batches)
        while True:
            has_turn = self._turn[name].is_set()
            if self.errors or not (has_turn and self._n_left):
                self._change(name, has_turn)
            self._n_left -= 1
            try:
                yield next(source)
            except StopIteration:  # an epoch has ended: the loop itself begins the next one
                self._n_left += 1
                return

    def _change(self, name: str, has_turn: bool) -> None:
        """End the block of this loop, if it has one, and wait for its next turn."""
        self._synchronise()
        if has_turn and not self.errors:
            self.step_s[name].append((time.perf_counter() - self._began) / self._n_block)
            self._turn[name].clear()
            self._hand_over()
        self._turn[name].wait()
        if self.errors or not self._n_left:
            raise Done
        self._synchronise()
        self._began = time.perf_counter()

    def _synchronise(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def times(self, name: str, scale: float = 1.0) -> Interval:
        """Seconds a step, times a scale."""
        return interval([scale * one for one in self.step_s[name]])

    def rate(self, name: str, n_samples: int) -> Interval:
        """Samples a second, of so many a step."""
        return interval([n_samples / one for one in self.step_s[name]])

    def speed(self, name: str) -> Interval:
        """How fast a loop is relative to the first one."""
        return interval([first / one for first, one in self._pairs(name)])

    def median_speed(self, name: str) -> Interval:
        """The same at the median: a block in which the host was held up counts as one block."""
        return median_interval([first / one for first, one in self._pairs(name)])

    def more_time(self, name: str) -> Interval:
        """Per cent that a step takes longer than the first loop's, at the median of the rounds."""
        return median_interval([100 * (one / first - 1) for first, one in self._pairs(name)])

    def _pairs(self, name: str) -> Iterator[tuple[float, float]]:
        return zip(self.step_s[self.names[0]], self.step_s[name], strict=True)
