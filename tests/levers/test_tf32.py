"""The precision of matrix products, which torch has two names for, the one or the other of which a
script may read or set."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.levers import tf32
from hotlap.levers.common.process import Process

MATMUL = torch.backends.cuda.matmul


def precisions() -> dict[str, Any]:
    """All that a script can read; raises where the names contradict each other."""
    return {
        "older": (torch.get_float32_matmul_precision(), MATMUL.allow_tf32),
        "newer": (MATMUL.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision),
    }


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """Of the lever, which is applied."""
    told: list[dict[str, Any]] = []
    process = Process(torch, SimpleNamespace(), lambda **event: told.append(event))
    before = precisions()
    process.apply(tf32.LEVER, "high")
    yield told
    MATMUL.fp32_precision = "ieee"
    torch.backends.fp32_precision = "none"
    process.undo()
    assert precisions() == before


def test_both_names_tell_the_same(events: list[dict[str, Any]]) -> None:
    assert precisions() == {"older": ("high", True), "newer": ("tf32", "tf32")}


@pytest.mark.parametrize("owner", [MATMUL, torch.backends], ids=["matmul", "all"])
def test_a_script_that_sets_full_precision_can_read_it_by_both_names(
    events: list[dict[str, Any]], owner: Any
) -> None:
    owner.fp32_precision = "ieee"
    assert precisions()["older"] == ("highest", False)
    assert MATMUL.fp32_precision == "ieee"
    assert [one["failed"] for one in events if "failed" in one] == ["tf32"]
    owner.fp32_precision = "none"  # later ones are the script's alone
    assert precisions()["older"] == ("highest", False)


def test_settings_of_torch_itself_leave_the_lever_in_place(events: list[dict[str, Any]]) -> None:
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    with torch.backends.mkldnn.flags(enabled=True):
        pass
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert precisions()["older"] == ("high", True)
    assert not any("failed" in one for one in events)
