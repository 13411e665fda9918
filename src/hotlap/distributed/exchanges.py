"""The operations that ranks do together, each with numbers whose result is known beforehand.

Point to point, the six collectives of every course (broadcast, reduce, all_reduce, gather, scatter,
all_gather), and two more that sharded and expert-parallel training live on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

ROOT = 0
"""The one rank that sends or receives, where an operation has such a one."""
# From torch 2.13 on they have new names, and the old ones warn.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Exchange:
    """An operation with its buffers on one rank."""

    call: Callable[[], object]
    given: torch.Tensor
    """What this rank brings; some operations overwrite it with their result."""
    result: torch.Tensor | None
    """Where the result lies; None on a rank that receives nothing."""
    expected: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The group as one of its ranks sees it."""

    rank: int
    n: int
    device: torch.device

    def numbers(self, owner: int, n_elements: int) -> torch.Tensor:
        """The array of one rank: small whole numbers, so that sums of them are exact."""
        ramp = torch.arange(n_elements, device=self.device) % 7
        return (ramp + 10 * (owner % 100)).to(torch.float32)

    def total(self, n_elements: int) -> torch.Tensor:
        """The sum of the arrays of all ranks."""
        total = self.numbers(0, n_elements)
        for owner in range(1, self.n):
            total += self.numbers(owner, n_elements)
        return total

    def part(self, array: torch.Tensor, owner: int) -> torch.Tensor:
        """A copy of one rank's part of an array that is cut among all."""
        return array.chunk(self.n)[owner].clone()


@dataclass(frozen=True, slots=True)
class Operation:
    """Something ranks do together."""

    name: str
    words: str
    """What it does, in one line."""
    bus_factor: Callable[[int], float]
    """Bus bandwidth over algorithm bandwidth, for a number of ranks."""
    prepare: Callable[[Ranks, int], Exchange]
    """Makes the buffers for a number of elements, a multiple of the number of ranks."""


def _send_recv(ranks: Ranks, n: int) -> Exchange:
    given, result = ranks.numbers(ranks.rank, n), torch.zeros(n, device=ranks.device)
    after, before = (ranks.rank + 1) % ranks.n, (ranks.rank - 1) % ranks.n

    def call() -> None:
        both = [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, result, before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Exchange(call, given, result, ranks.numbers(before, n))


def _broadcast(ranks: Ranks, n: int) -> Exchange:
    given = ranks.numbers(ranks.rank, n)
    return Exchange(lambda: dist.broadcast(given, ROOT), given, given, ranks.numbers(ROOT, n))


def _reduce(ranks: Ranks, n: int) -> Exchange:
    given, is_root = ranks.numbers(ranks.rank, n), ranks.rank == ROOT
    # On other ranks the buffer holds partial sums afterwards: nothing that can be promised.
    result, expected = (given, ranks.total(n)) if is_root else (None, None)
    return Exchange(lambda: dist.reduce(given, ROOT), given, result, expected)


def _all_reduce(ranks: Ranks, n: int) -> Exchange:
    given = ranks.numbers(ranks.rank, n)
    return Exchange(lambda: dist.all_reduce(given), given, given, ranks.total(n))


def _gather(ranks: Ranks, n: int) -> Exchange:
    given = ranks.numbers(ranks.rank, n // ranks.n)
    if ranks.rank != ROOT:
        return Exchange(lambda: dist.gather(given, None, ROOT), given, None, None)
    result = torch.zeros(n, device=ranks.device)
    parts = list(result.chunk(ranks.n))
    expected = _all_parts(ranks, n)
    return Exchange(lambda: dist.gather(given, parts, ROOT), given, result, expected)


def _scatter(ranks: Ranks, n: int) -> Exchange:
    given, result = ranks.numbers(ROOT, n), torch.zeros(n // ranks.n, device=ranks.device)
    parts = list(given.chunk(ranks.n)) if ranks.rank == ROOT else None
    expected = ranks.part(given, ranks.rank)
    return Exchange(lambda: dist.scatter(result, parts, ROOT), given, result, expected)


def _all_gather(ranks: Ranks, n: int) -> Exchange:
    given, result = ranks.numbers(ranks.rank, n // ranks.n), torch.zeros(n, device=ranks.device)
    return Exchange(lambda: ALL_GATHER(result, given), given, result, _all_parts(ranks, n))


def _reduce_scatter(ranks: Ranks, n: int) -> Exchange:
    given, result = ranks.numbers(ranks.rank, n), torch.zeros(n // ranks.n, device=ranks.device)
    expected = ranks.part(ranks.total(n), ranks.rank)
    return Exchange(lambda: REDUCE_SCATTER(result, given), given, result, expected)


def _all_to_all(ranks: Ranks, n: int) -> Exchange:
    given, result = ranks.numbers(ranks.rank, n), torch.zeros(n, device=ranks.device)
    arrays = (ranks.numbers(owner, n) for owner in range(ranks.n))
    expected = torch.cat([ranks.part(array, ranks.rank) for array in arrays])
    return Exchange(lambda: dist.all_to_all_single(result, given), given, result, expected)


def _all_parts(ranks: Ranks, n: int) -> torch.Tensor:
    return torch.cat([ranks.numbers(owner, n // ranks.n) for owner in range(ranks.n)])


def _whole(n: int) -> float:
    return 1.0


def _all_but_own(n: int) -> float:
    return (n - 1) / n


def _twice_all_but_own(n: int) -> float:
    return 2 * (n - 1) / n


# The factors are those of nccl-tests: doc/PERFORMANCE.md, and for gather, scatter and send_recv
# `GatherGetBw`, `ScatterGetBw` and `SendRecvGetBw` in its src/.
OPERATIONS = (
    Operation(
        "send_recv", "each rank sends to the next, the last to the first", _whole, _send_recv
    ),
    Operation("broadcast", "one rank's array goes to all", _whole, _broadcast),
    Operation("reduce", "the sum of all ranks' arrays goes to one", _whole, _reduce),
    Operation(
        "all_reduce", "the sum goes to all: gradients in DDP", _twice_all_but_own, _all_reduce
    ),
    Operation("gather", "one rank gets every rank's part", _all_but_own, _gather),
    Operation("scatter", "one rank's array is dealt out, a part each", _all_but_own, _scatter),
    Operation("all_gather", "all get every rank's part: FSDP's weights", _all_but_own, _all_gather),
    Operation(
        "reduce_scatter",
        "each gets its part of the sum: FSDP's gradients",
        _all_but_own,
        _reduce_scatter,
    ),
    Operation(
        "all_to_all", "each sends a part to each: experts of an MoE", _all_but_own, _all_to_all
    ),
)
