"""The description of a lever: all that is known of it before it is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hotlap.levers.common.edits import Edit
    from hotlap.levers.common.process import Process
    from hotlap.levers.common.workload import Workload

Changes = Literal["nothing", "rounding", "maths"]
Risk = Literal["safe", "danger zone"]


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer and its reason."""

    yes: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Takes:
    """Which values a lever takes, and how a person is told of them."""

    expected: str
    """As in '… is expected'."""
    accepts: Callable[[str], bool]


def one_of(*words: str) -> Takes:
    """Some words and nothing else."""
    *others, last = (f"'{word}'" for word in words)
    return Takes(" or ".join(filter(None, (", ".join(others), last))), words.__contains__)


def whole_number(least: int) -> Takes:
    """A whole number of at least so much."""

    def accepts(value: str) -> bool:
        return value.isascii() and value.isdigit() and int(value) >= least

    return Takes(f"a whole number of at least {least}", accepts)


ANYTHING = Takes("a value", lambda value: True)
"""Of levers that say nothing about it."""


def _no_environment(value: str, workload: Workload) -> Mapping[str, str]:
    return {}


def _nothing_inside(torch: Any, value: str, process: Process) -> None:
    return


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that can be changed to make the step faster, smaller or cheaper."""

    name: str
    summary: str
    """What it does, in one sentence."""
    changes: Changes
    """Of the training: nothing (every loss bit for bit), rounding (within `bound`), the maths."""
    risk: Risk
    phases: tuple[str, ...]
    """The phases of the step that it can shorten; empty where it only saves memory."""
    saves: Callable[[Workload], float]
    """The part of these phases that it saves where it works: a guess, by which it waits its turn.
    """
    values: Callable[[Workload], tuple[str, ...]]
    """The values worth trying on this workload, the most promising first."""
    applies: Callable[[Workload], Decision]
    """Whether there is anything to gain on this machine and workload."""
    edit: Callable[[str, Workload], tuple[Edit, ...]]
    """What a user would change in the source to have it without hotlap."""
    takes: Takes = ANYTHING
    """The values that `apply` can do something with. 'off' is none: it leaves the lever out."""
    apply: Callable[[Any, str, Process], None] = _nothing_inside
    """Make the change in the training process, at the end of its `import torch`."""
    environment: Callable[[str, Workload], Mapping[str, str]] = _no_environment
    """What has to be in the environment before the process starts."""
    bound: float = 0.0
    """For rounding: how far a loss of the first steps may lie from the baseline's, relative."""
    new_randomness: bool = False
    """Whether random numbers are drawn elsewhere: then curves are compared, not steps."""
    new_dropout: bool = False
    """The same, for a model that has dropout: other kernels draw other masks."""
    needs: tuple[str, ...] = field(default=())
    """Levers without which it may fail on some machines: tried together with them then."""
    only_with: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    """Levers without which there is nothing for it to do on this workload."""
    best_with: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    """Levers with which it gains more than the two of them one by one: tried together first."""
    instead_of: tuple[str, ...] = field(default=())
    """Levers that it takes the place of: they are left out when it is tried."""
    needless_with: tuple[str, ...] = field(default=())
    """Levers that leave nothing for it to do: not tried where one of them is kept."""
    cost: Callable[[str], float] = lambda value: 1.0
    """How many times longer than a usual trial one with this value takes: compilers need time."""
    values_go_on: bool = False
    """Whether a further value may gain as much again as the one before it: a larger batch. Values
    are then tried up to the one that gains no more, and kept after two trials that went well.
    """
    saves_memory: bool = False
    """Worth a trial for memory's sake, although it makes the step no faster."""
