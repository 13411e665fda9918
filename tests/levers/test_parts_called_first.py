"""A part of a model that is called while the model is made is seen first, and is not the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lever_runs import BY_NAME, run_with
from torch import nn

from hotlap.levers import compile
from hotlap.levers.common.edits import apply_edits
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Events, Workload, workload_from

SCRIPT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())
        n = self.conv(torch.zeros(1, 3, 8, 8)).shape[1]
        self.fc = nn.Linear(n, 2)

    def forward(self, x):
        return self.fc(self.conv(x))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    images = torch.randn(4, 3, 8, 8)
    loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def workload(script: Path) -> Workload:
    _, events = run_with(script.parent / "seen", script)
    return workload_from(events, {}, 1, 1, ())


EDITS = {
    "bf16": '    with torch.autocast("cpu", dtype=torch.bfloat16):\n        loss = model(images)',
    "channels_last": "model(images.to(memory_format=torch.channels_last))",
    "compile": 'model.compile(mode="default")\noptimizer =',
    "pure_bf16": "model.to(torch.bfloat16)\noptimizer =",
}


@pytest.mark.parametrize("lever", EDITS)
def test_an_edit_is_about_the_model(script: Path, workload: Workload, lever: str) -> None:
    assert [one.facts["kind"] for one in workload.models] == ["Sequential", "Net"]
    assert [one.facts["kind"] for one in workload.whole_models] == ["Net"]
    value = BY_NAME[lever].values(workload)[0]
    assert EDITS[lever] in apply_edits(BY_NAME[lever].edit(value, workload))[str(script)]


def test_a_part_that_is_called_after_its_model_is_no_model() -> None:
    events: list[dict[str, Any]] = []
    process = Process(torch, SimpleNamespace(), lambda **event: events.append(event))
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)
    for module in (model, model[0], other):
        process._meet_model(module, (torch.ones(1, 2),), {})
    seen = workload_from(Events({}, {}, tuple(events), ()), {}, 1, 1, ())
    assert [one.facts["is_part"] for one in seen.models] == [False, True, False]


def test_a_model_that_is_made_anew_is_one_model() -> None:
    events: list[dict[str, Any]] = []
    process = Process(torch, SimpleNamespace(), lambda **event: events.append(event))
    for _ in range(2):
        process._meet_model(nn.Linear(2, 2), (torch.ones(1, 2),), {})
    seen = workload_from(Events({}, {}, tuple(events), ()), {}, 1, 1, ())
    assert len(seen.models) == 1


def test_what_was_compiled_by_itself_is_compiled_with_the_model() -> None:
    process = Process(torch, SimpleNamespace(around_call=None), lambda **event: None)
    process.apply(compile.LEVER, "reduce-overhead")
    part, x = nn.Linear(2, 2), torch.ones(1, 2)
    process._meet_model(part, (x,), {})
    assert part._compiled_call_impl is not None
    model = nn.Sequential(part, nn.ReLU())
    process._meet_model(model, (x,), {})
    assert (part._compiled_call_impl, model._compiled_call_impl is None) == (None, False)
    process.undo()
    assert model._compiled_call_impl is None


def test_a_model_with_a_part_that_the_script_compiles_is_left_alone() -> None:
    events: list[dict[str, Any]] = []
    process = Process(torch, SimpleNamespace(), lambda **event: events.append(event))
    process.apply(compile.LEVER, "default")
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager")
    process._meet_model(model, (torch.ones(1, 2),), {})
    assert model._compiled_call_impl is None
    assert model[0]._compiled_call_impl is not None
    assert not any("done" in event for event in events)
    process.undo()
