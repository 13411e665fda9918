"""NCCL or gloo is told to use a network interface that this node does not have.

NCCL reads a list of beginnings of names; '=' before it means whole names, '^' all others.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.rule import Case, Rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.records.finding import Finding

NAME = "socket_interface"
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check(case: Case, limits: Thresholds) -> Iterator[Finding]:
    """One finding a variable."""
    names = [one.name for one in case.machine.system.network.interfaces]
    for variable in VARIABLES:
        value = case.environment.get(variable, "")
        if value and names and not _matches(value, [*names, "lo"]):
            yield Finding(
                NAME,
                "error",
                f"{variable}={value} names no interface of this node",
                (f"there are {', '.join(names)}",),
                None,
                f"unset {variable}, or name one that all nodes have",
            )


def _matches(value: str, names: list[str]) -> bool:
    is_other, is_whole = value.startswith("^"), value.lstrip("^").startswith("=")
    words = [word for word in value.lstrip("^=").split(",") if word]

    def is_named(name: str) -> bool:
        return any(name == word if is_whole else name.startswith(word) for word in words)

    return any(is_named(name) != is_other for name in names)


RULE = Rule(NAME, check)
