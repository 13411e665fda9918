"""The levers on optimizers: their choice survives a checkpoint, what torch refuses is left."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.levers import foreach_optimizer, fused_optimizer
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Workload

CHOICES = {"fused": fused_optimizer.LEVER, "foreach": foreach_optimizer.LEVER}


class Watched(Process):
    """A process whose constructors are put back with everything else."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__(torch, SimpleNamespace(), lambda **event: self.events.append(event))
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
            self.replace(kind, "__init__", vars(kind)["__init__"])
            self._see_constructor(kind, self._on_optimizer, self._describe_optimizer)

    @property
    def failed_levers(self) -> list[str]:
        return [event["why"] for event in self.events if "failed" in event]


@pytest.fixture
def process() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.undo()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Two steps with the script's own scaler."""
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def written_without_levers() -> dict[str, Any]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer)
    return optimizer.state_dict()


@pytest.mark.parametrize("name", CHOICES)
def test_a_checkpoint_without_the_lever_leaves_it_in_place(name: str) -> None:
    saved = written_without_levers()
    before = copy.deepcopy(saved)
    process = Watched()
    try:
        process.apply(CHOICES[name], "on")
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0][name] is True
        assert saved["param_groups"] == before["param_groups"]
        trained(model, optimizer)
        assert process.failed_levers == []
    finally:
        process.undo()
    optimizer.load_state_dict(saved)  # the lever is gone, and so is its hand in this
    assert optimizer.param_groups[0][name] is None


def test_a_checkpoint_that_chooses_is_loaded_as_it_is(process: Watched) -> None:
    saved = written_without_levers()
    saved["param_groups"][0]["fused"] = False
    process.apply(foreach_optimizer.LEVER, "on")
    optimizer = torch.optim.Adam(nn.Linear(4, 1).parameters())
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["foreach"] is None


TENSORS: dict[str, dict[str, Any]] = {
    "rate": {"lr": torch.tensor(1e-3)},
    "betas": {"betas": (torch.tensor(0.9), torch.tensor(0.999))},
}


@pytest.mark.parametrize("options", TENSORS.values(), ids=list(TENSORS))
@pytest.mark.parametrize("is_of_a_group", [False, True])
def test_foreach_leaves_numbers_that_are_tensors_alone(
    process: Watched, options: dict[str, Any], is_of_a_group: bool
) -> None:
    process.apply(foreach_optimizer.LEVER, "on")
    parameters = list(nn.Linear(4, 1).parameters())
    groups = [{"params": parameters, **options}]
    if is_of_a_group:
        optimizer = torch.optim.Adam(groups)
    else:
        optimizer = torch.optim.Adam(parameters, **options)
    assert optimizer.param_groups[0]["foreach"] is None
    (seen,) = [event["facts"] for event in process.events if event.get("seen") == "optimizer"]
    workload = Workload(optimizers=(Seen(None, seen),))
    assert "tensors" in foreach_optimizer.applies(workload).reason
    assert foreach_optimizer.edit("on", workload) == ()


def test_adagrad_is_fused_on_a_gpu_only_where_torch_has_it() -> None:
    adagrad = Seen(None, {"kind": "Adagrad", "fused": None, "foreach": None})
    on_gpu = Workload(device="cuda", torch="2.12.0+cu130", optimizers=(adagrad,))
    assert not fused_optimizer.applies(on_gpu).yes
    assert fused_optimizer.edit("on", on_gpu) == ()
    for torch_version, device in (("2.13.0+cu130", "cuda"), ("2.6.0", "cpu")):
        other = dataclasses.replace(on_gpu, torch=torch_version, device=device)
        assert fused_optimizer.applies(other).yes
        assert len(fused_optimizer.edit("on", other)) == 1
    assert "Adagrad" in fused_optimizer.kinds("cpu", "2.6.0")
    assert "Adagrad" not in fused_optimizer.kinds("cuda", "2.6.0")
    assert "Adam" in fused_optimizer.kinds("cuda", "2.6.0")
    assert fused_optimizer.kinds("mps", "2.13.0") == ()


@pytest.mark.parametrize("kind", ["Adam", "Adagrad"])
def test_parameters_that_cannot_be_fused_are_left_alone(process: Watched, kind: str) -> None:
    process.apply(fused_optimizer.LEVER, "on")
    make = getattr(torch.optim, kind)
    elsewhere = make([nn.Parameter(torch.empty(2, device="meta"))])
    complex_one = make([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    assert (elsewhere.defaults["fused"], complex_one.defaults["fused"]) == (None, None)
    assert make([nn.Parameter(torch.zeros(2))]).defaults["fused"] is True


@pytest.mark.parametrize("has_rates", [True, False])
def test_an_optimizer_tells_whether_its_groups_have_rates(
    process: Watched, has_rates: bool
) -> None:
    group: dict[str, Any] = {"params": nn.Linear(2, 2).parameters()}
    torch.optim.SGD([{**group, "lr": 0.1} if has_rates else group], lr=0.2)
    (facts,) = [event["facts"] for event in process.events if event.get("seen") == "optimizer"]
    assert (facts["lr"], facts["has_group_rates"]) == (0.2, has_rates)
