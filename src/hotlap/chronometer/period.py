"""How many optimizer updates make one step.

A GAN makes two updates a step, one with three critic updates four: the optimizers take turns, and
the smallest period of their sequence is the step. No short period (a second optimizer that takes
over half-way) means that each update is a step.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 16
_WINDOW = 400
_AGREEMENT = 0.95


def smallest_period(optimizers: Sequence[int]) -> int:
    """The length of the shortest pattern that the sequence of optimizers repeats."""
    recent = optimizers[-_WINDOW:]
    if len(set(recent)) < 2:
        return 1
    for period in range(2, min(MAX_PERIOD, len(recent) // 2) + 1):
        pairs = len(recent) - period
        same = sum(a == b for a, b in zip(recent, recent[period:], strict=False))
        covers_all = len(set(recent[:period])) == len(set(recent))
        if covers_all and same >= _AGREEMENT * pairs:
            return period
    return 1
