"""Half precision for a model that is not yet, at its first call, what it is trained as."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.levers.common.autocast import autocast_calls
from hotlap.levers.common.process import Process


def meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 2)


def double() -> nn.Module:
    return nn.Linear(4, 2, dtype=torch.float64)


def ready(model: nn.Module) -> nn.Module:
    return model.to_empty(device="cpu").float()


@pytest.mark.parametrize("make", [meta, double])
@pytest.mark.parametrize("with_grad", [False, True])
def test_a_call_for_a_shape_settles_nothing(make: Callable[[], nn.Module], with_grad: bool) -> None:
    events: list[dict[str, Any]] = []
    begun: list[str] = []
    session = SimpleNamespace(around_call=None)
    process = Process(torch, session, lambda **event: events.append(event))
    autocast_calls(torch, process, torch.bfloat16, begin=begun.append)
    model, types = make(), list[torch.dtype]()
    model.register_forward_hook(lambda module, args, result: types.append(result.dtype))
    first = next(model.parameters())
    with torch.set_grad_enabled(with_grad):
        if with_grad:
            process._meet_model(model, (first,), {})
        session.around_call(model, (torch.empty(1, 4, device=first.device, dtype=first.dtype),), {})
    assert begun == []
    for _ in range(2):
        result = session.around_call(ready(model), (torch.zeros(1, 4),), {})
    assert types[1:] == [torch.bfloat16, torch.bfloat16]
    assert result.dtype == torch.float32
    assert begun == ["cpu"]  # before the first backward, and once
    assert [one["what"] for one in events if "done" in one] == [
        "Linear is called in autocast, in bfloat16"
    ]
    assert not any("failed" in one for one in events)
    session.around_call(model.double(), (torch.zeros(1, 4, dtype=torch.float64),), {})
    assert types[-1] == torch.float64
    process.undo()
