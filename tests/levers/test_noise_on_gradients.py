"""The guard's yardstick: noise on what a training has, and no end of the training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hotlap.levers.common.noise import HALF_PRECISION, NAME, NOISE
from hotlap.levers.common.process import Process


def updated(process: Process, gradient: Any) -> Any:
    """By how much a parameter of zeros moves."""
    process.apply(NOISE, HALF_PRECISION)
    parameter = torch.nn.Parameter(torch.zeros(4, 2))
    parameter.grad = gradient
    torch.optim.SGD([parameter], lr=1.0).step()
    process.undo()
    return -parameter.detach()


def process_with(events: list[dict[str, Any]]) -> Process:
    return Process(torch, SimpleNamespace(), lambda **event: events.append(event))


def test_it_is_put_on_sparse_gradients_as_on_others() -> None:
    events: list[dict[str, Any]] = []
    twice_one_row = torch.sparse_coo_tensor(torch.tensor([[1, 1, 3]]), torch.ones(3, 2), (4, 2))
    for gradient in (twice_one_row, twice_one_row.to_dense()):
        exact = gradient.to_dense().clone()
        moved = updated(process_with(events), gradient)
        assert torch.allclose(moved, exact, rtol=0.1)
        assert ((moved != exact) == (exact != 0)).all()
    assert not any("failed" in event for event in events)


def test_an_error_in_it_is_told_and_goes_no_further(monkeypatch: Any) -> None:
    def refuse(*args: Any) -> Any:
        raise RuntimeError("no such numbers")

    monkeypatch.setattr(torch, "empty_like", refuse)
    events: list[dict[str, Any]] = []
    assert updated(process_with(events), torch.ones(4, 2)).tolist() == [[1.0, 1.0]] * 4
    assert {"failed": NAME, "why": "RuntimeError: no such numbers"} in events
