"""What the guard compares of the first steps, whatever form a model's inputs have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hotlap.levers.common.fingerprint import N_UPDATES, Fingerprints


class TakesAnything(nn.Module):
    """Takes anything, and gives something that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.weight.sum()


def sums_of(*args: Any, **kwargs: Any) -> list[float]:
    """The sums that are reported of a model's first inputs."""
    events: list[dict[str, Any]] = []
    fingerprints = Fingerprints(torch, lambda **event: events.append(event))
    model = TakesAnything()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(N_UPDATES):
            fingerprints.see_input(model, args, kwargs)
            model(*args, **kwargs).backward()
            optimizer.step()
    finally:
        fingerprints.remove()
    return next(event["inputs"] for event in events if "inputs" in event)


TWO, SIX = torch.full((2,), 1.0), torch.full((3,), 2)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((TWO, SIX), {}),
        ((TWO,), {"mask": SIX}),
        (({"images": TWO, "labels": SIX},), {}),
        (([TWO, SIX],), {}),
        ((((TWO, 5), "a word"),), {"targets": [{"boxes": SIX}]}),
    ],
)
def test_every_tensor_of_the_inputs_counts(args: Any, kwargs: Any) -> None:
    assert sums_of(*args, **kwargs) == [2.0, 6.0]


def test_inputs_that_are_complex_or_sparse_do_not_hide_the_others() -> None:
    sparse = torch.eye(3).to_sparse()
    assert sums_of(torch.tensor([1 + 2j, 1j]).conj(), sparse, SIX) == [-2.0, 6.0]


def test_what_cannot_be_measured_is_unknown_and_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_memory(self: Any, tensors: Any) -> Any:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(Fingerprints, "_norms", without_memory)
    events: list[dict[str, Any]] = []
    fingerprints = Fingerprints(torch, lambda **event: events.append(event))
    model = TakesAnything()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        model().backward()
        optimizer.step()
    finally:
        fingerprints.remove()
    assert model.weight.tolist() == pytest.approx([0.9] * 3)
    assert all("unknown" in event for event in events)
    assert not any("moved" in event or "gradients" in event for event in events)
