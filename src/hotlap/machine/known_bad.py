"""Versions that are known to be bad, each with the report that says so.

A row stays until nobody can have the version any more. What is not in a report stays out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hotlap.records.software import KnownBad


@dataclass(frozen=True, slots=True)
class Row:
    package: str
    """'torch', 'cudnn', 'nccl' as torch reports them, or the name of a package."""
    since: tuple[int, ...]
    before: tuple[int, ...]
    """The first version that is good again."""
    what: str
    source: str
    only_with_gpu: bool = True
    torch_since: tuple[int, ...] = ()
    torch_before: tuple[int, ...] = (999,)
    """The versions of torch with which it is bad."""


ROWS = (
    Row(
        "cudnn",
        (9, 8),
        (9, 13),
        "3d convolutions in bf16 may give wrong results",
        "https://github.com/pytorch/pytorch/issues/163539",
        torch_before=(2, 9),  # which goes around cuDNN there
    ),
    Row(
        "cudnn",
        (9, 8),
        (9, 15),
        "3d convolutions go around it and take several times the memory",
        "https://github.com/pytorch/pytorch/issues/166643",
        torch_since=(2, 9, 1),
    ),
    Row(
        "torch",
        (2, 9),
        (2, 9, 1),
        "3d convolutions go around cuDNN and take several times the memory",
        "https://github.com/pytorch/pytorch/issues/166643",
    ),
)


def find_known_bad(versions: Mapping[str, str | None], has_gpu: bool) -> tuple[KnownBad, ...]:
    """The rows that the installed versions fall into."""
    found = []
    for row in ROWS:
        text = versions.get(row.package)
        is_with = row.torch_since <= parse_version(versions.get("torch")) < row.torch_before
        if text and is_with and (has_gpu or not row.only_with_gpu) and _is_in(text, row):
            found.append(KnownBad(row.package, text, row.what, row.source))
    return tuple(found)


def _is_in(text: str, row: Row) -> bool:
    version = parse_version(text)
    return row.since <= version < row.before


def parse_version(text: str | None) -> tuple[int, ...]:
    """'2.13.0+cpu' is (2, 13, 0); what is no version is ()."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part) for part in found[0].split(".")) if found else ()
