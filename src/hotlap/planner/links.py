"""What ranks send one another: seconds on the nominal links, and the hops that each cost a latency.

Groups are nested: the ranks of a group lie `stride` apart. Those of one node talk over its links;
between nodes all groups of a node share its network.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hotlap.planner.cluster import Gpus


@dataclass(frozen=True, slots=True)
class Sending:
    """Of one collective, or a sum of several that follow one another."""

    link_s: float = 0.0
    """On the links inside a node, at their nominal rate."""
    net_s: float = 0.0
    """On the network between nodes, at its nominal rate."""
    link_hops: float = 0.0
    net_hops: float = 0.0

    def __add__(self, other: Sending) -> Sending:
        return Sending(
            self.link_s + other.link_s,
            self.net_s + other.net_s,
            self.link_hops + other.link_hops,
            self.net_hops + other.net_hops,
        )

    def times(self, n: float) -> Sending:
        """So many of them."""
        return Sending(self.link_s * n, self.net_s * n, self.link_hops * n, self.net_hops * n)


NOTHING = Sending()


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk to one another."""

    n: int
    inside: int
    """Of them, in one node."""
    gpus: Gpus

    @property
    def n_nodes(self) -> int:
        """Over which it is spread."""
        return ceil(self.n / self.inside)

    @property
    def net_bytes_per_s(self) -> float:
        """Its share of a node's network."""
        return self.gpus.node_bytes_per_s * self.inside / min(self.gpus.per_node, self.gpus.n)


def group(gpus: Gpus, n: int, stride: int) -> Group:
    """Of n ranks that lie so far apart."""
    inside = max(1, min(n, gpus.per_node // stride))
    return Group(n, inside, gpus)


def gather(ranks: Group, total_bytes: float) -> Sending:
    """All-gather, or reduce-scatter, of so many bytes in all: each passes every rank but one."""
    if ranks.n == 1 or not total_bytes:
        return NOTHING
    link_s = net_s = 0.0
    if ranks.inside > 1:
        link_s = total_bytes * (ranks.n - 1) / ranks.n / ranks.gpus.link_bytes_per_s
    if ranks.n_nodes > 1:
        net_s = total_bytes * (ranks.n_nodes - 1) / ranks.n_nodes / ranks.net_bytes_per_s
    hops = ranks.n_nodes - 1
    return Sending(link_s, net_s, ranks.n - 1 - hops, hops)


def reduce_all(ranks: Group, n_bytes: float) -> Sending:
    """All-reduce: a reduce-scatter and an all-gather."""
    return gather(ranks, n_bytes).times(2)


def all_to_all(ranks: Group, n_bytes: float) -> Sending:
    """Each rank has so many bytes, of which it keeps its own share."""
    if ranks.n == 1:
        return NOTHING
    outside = (ranks.n - ranks.inside) / ranks.n
    link_s = n_bytes * (ranks.inside - 1) / ranks.n / ranks.gpus.link_bytes_per_s
    net_s = n_bytes * outside * ranks.inside / ranks.net_bytes_per_s if outside else 0.0
    return Sending(link_s, net_s, ranks.inside - 1, ranks.n_nodes - 1)


def send(gpus: Gpus, stride: int, n_bytes: float) -> Sending:
    """From each rank to the one that lies a stride further on."""
    if stride < min(gpus.per_node, gpus.n):
        return Sending(link_s=n_bytes / gpus.link_bytes_per_s, link_hops=1)
    per_gpu = gpus.node_bytes_per_s / min(gpus.per_node, gpus.n)
    return Sending(net_s=n_bytes / per_gpu, net_hops=1)
