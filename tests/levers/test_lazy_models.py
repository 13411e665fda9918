"""Models with lazy layers: levers see and change them once all of their weights are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hotlap.levers.common.process import Process


class Training:
    """Calls models as the chronometer's hooks do, and keeps what the process reports."""

    def __init__(self) -> None:
        self.inputs_seen = 0
        self.session = SimpleNamespace(new_module=None, on_training_call=self._see_input)
        self.events: list[dict[str, Any]] = []
        self.process = Process(torch, self.session, lambda **event: self.events.append(event))
        self.changed: list[Any] = []
        self.process.on_model(lambda module, args, kwargs: self.changed.append(module))
        self._met: list[Any] = []

    def _see_input(self, module: Any, args: Any, kwargs: Any) -> None:
        self.inputs_seen += 1

    def call(self, module: nn.Module, *args: torch.Tensor) -> None:
        if not any(module is one for one in self._met):
            self._met.append(module)
            self.process._meet_model(module, args, {})
        self.session.on_training_call(module, args, {})
        module(*args)

    def seen(self, what: str) -> list[dict[str, Any]]:
        return [event["facts"] for event in self.events if event.get("seen") == what]


def a_lazy_model() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))


def test_a_lazy_model_is_met_at_its_first_call_with_all_weights() -> None:
    training, model, images = Training(), a_lazy_model(), torch.randn(2, 3, 4, 4)
    training.call(model, images)
    assert training.seen("model") == []
    assert training.changed == []
    assert training.seen("process")[0]["device"] == "cpu"
    for _ in range(2):
        training.call(model, images)
    (facts,) = training.seen("model")
    assert facts["n_parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["kinds"]["Linear"] == 1
    assert training.changed == [model]
    assert training.inputs_seen == 3


def test_each_of_several_lazy_models_is_met_once() -> None:
    training, images = Training(), torch.randn(2, 3, 4, 4)
    first, second, whole = a_lazy_model(), a_lazy_model(), nn.Sequential(nn.Linear(4, 4))
    for model in (first, second, whole, second, first, second, first):
        training.call(model, images)
    assert training.changed == [whole, second, first]
    assert len(training.seen("model")) == 3
    assert training.inputs_seen == 7


def test_the_process_is_reported_where_a_model_cannot_be_described() -> None:
    class Odd(nn.Linear):
        def modules(self) -> Any:
            raise RuntimeError("not this one")

    training = Training()
    training.process._meet_model(Odd(2, 2), (torch.ones(1, 2),), {})
    assert training.seen("model") == []
    assert len(training.seen("process")) == 1
