"""Batches that a script makes itself: they are found, and made larger."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lever_runs import run_with
from running import run_hotlap

from hotlap.levers import batch_size
from hotlap.levers.common.edits import describe
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.own_batches import (
    FUNCTIONS,
    ask_for_rows,
    is_users_own,
    watch_own_batches,
)
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Seen, Site, Workload, read_events, workload_from

ON_THE_DEVICE = """
images, labels = torch.randn(8, 4), torch.randint(3, (8,))

def batch():
    return images, labels
"""
FROM_A_TEXT = """
text = torch.arange(900) % 4

def batch():
    places = torch.randint(len(text) - 5, (8,))
    rows = torch.stack([text[i : i + 4] for i in places])
    return rows.float(), text[places + 4] % 3
"""
ONE_BY_ONE = """
batches = [(torch.empty(size=[8, 4]).normal_(), torch.full((8,), i % 3)) for i in range(4)]

def batch():
    return batches[len(rows) % 4]
"""
FROM_A_TABLE = """
table = torch.randn(64, 4)

def batch():
    return table[:8], torch.arange(8) % 3
"""
LOOP = """
import json
import torch
from torch import nn

class Net(nn.Module):
    '''With as many features as a batch has rows.'''
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 4))
        self.register_buffer("shift", torch.zeros(8))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x @ self.scale.T + self.shift + torch.zeros(8))

torch.manual_seed(0)
{batches}
rows = []
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    inputs, labels = batch()
    rows.append((len(inputs), len(labels)))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
shapes = [tuple(one.shape) for one in (model.scale, model.shift)]
print(json.dumps({{"rows": rows, "shapes": shapes, "lr": optimizer.param_groups[0]["lr"]}}))
"""
FOUND = {"on the device": ON_THE_DEVICE, "from a text": FROM_A_TEXT, "one by one": ONE_BY_ONE}


def script_of(folder: Path, batches: str) -> Path:
    script = folder / "train.py"
    script.write_text(LOOP.format(batches=batches))
    return script


def seen_in(folder: Path, script: Path) -> Workload:
    """What the tuner learns of a script from its baseline."""
    folder.mkdir()
    orders = Orders(seed=0, is_trial=True).to_environment()
    result = run_hotlap(str(script), folder=folder, options=("--quiet",), env=orders)
    assert result.code == 0, result.stderr.decode()
    return workload_from(read_events(result.folder), result.run["phases_s"], 2, 1, ())


@pytest.mark.parametrize("name", FOUND)
def test_they_are_found_where_they_are_made_and_can_be_larger(tmp_path: Path, name: str) -> None:
    script = script_of(tmp_path, FOUND[name])
    workload = seen_in(tmp_path / "seen", script)
    assert workload.own_batches
    lines = script.read_text().splitlines()
    for one in workload.own_batches:
        assert one.site is not None
        assert f"torch.{one.facts['function']}(" in lines[one.site.line - 1]
        assert "nn.Parameter" not in lines[one.site.line - 1]
    assert batch_size.applies(workload).yes
    assert batch_size.values(workload)[:3] == ("x2:8", "x4:8", "x8:8")

    result, events = run_with(tmp_path / "larger", script, batch_size="x4:8")
    assert result.truth["rows"] == [[32, 32]] * 6
    assert result.truth["shapes"] == [[8, 4], [8]]  # the module's own have as many rows by chance
    assert result.truth["lr"] == pytest.approx(0.4)
    made = [what for what in events.done["batch_size"] if what.endswith("makes 32 rows, not 8")]
    assert len(made) == len(workload.own_batches)


def test_where_they_are_not_seen_it_does_not_apply(tmp_path: Path) -> None:
    script = script_of(tmp_path, FROM_A_TABLE)
    workload = seen_in(tmp_path / "seen", script)
    assert workload.own_batches == ()
    decision = batch_size.applies(workload)
    assert not decision.yes
    assert "is not seen" in decision.reason


def test_rows_that_do_not_come_to_the_model_are_told(tmp_path: Path) -> None:
    """A script that was changed since it was tuned."""
    script = script_of(tmp_path, "mask = torch.ones(8)\n" + FROM_A_TABLE)
    variables = Orders({"batch_size": "x2:8"}).to_environment()
    result = run_hotlap(str(script), folder=tmp_path, options=("--quiet",), env=variables)
    assert result.code == 0
    assert read_events(result.folder).failed == {"batch_size": "Net gets 8 rows, not 16"}
    assert json.loads(result.stdout)["rows"] == [[8, 8]] * 6


def test_a_dataloader_goes_first() -> None:
    own = Seen(Site("train.py", 3), {"rows": 8, "function": "randn"})
    loader = Seen(Site("train.py", 5), {"batch_size": 16})
    both = Workload(own_batches=(own,), loaders=(loader,))
    assert batch_size.values(both)[:3] == ("x2", "x4", "x8")
    made_elsewhere = Workload(own_batches=(own,), loaders=(Seen(None, {"batch_size": None}),))
    assert batch_size.values(made_elsewhere)[:3] == ("x2:8", "x4:8", "x8:8")


def test_its_edit_names_each_line(tmp_path: Path) -> None:
    script = script_of(tmp_path, ON_THE_DEVICE)
    site = Site(str(script), 20)
    own = tuple(Seen(site, {"rows": 8, "function": name}) for name in ("randn", "randint"))
    sgd = Seen(Site(str(script), 28), {"kind": "SGD", "lr": 0.1})
    told = [
        describe(one)
        for one in batch_size.edit("x4:8", Workload(own_batches=own, optimizers=(sgd,)))
    ]
    assert told[0].endswith("train.py:20  torch.randn with 32 rows, not 8")
    assert told[1].endswith("train.py:20  torch.randint with 32 rows, not 8")
    assert "lr=0.4" in told[2]


# What a call says about its size ------------------------------------------------------------


@pytest.fixture
def process() -> Any:
    made = Process(torch, SimpleNamespace(new_module=None), lambda **event: None)
    yield made
    made.undo()


CALLS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "as arguments": (lambda: torch.randn(8, 3), (16, 3)),
    "as a tuple": (lambda: torch.zeros((8, 3)), (16, 3)),
    "as a list": (lambda: torch.ones([8]), (16,)),
    "as a size": (lambda: torch.empty(torch.Size([8, 8])), (16, 8)),
    "by name": (lambda: torch.rand(size=(8, 2)), (16, 2)),
    "behind a bound": (lambda: torch.randint(9, (8,)), (16,)),
    "behind two bounds": (lambda: torch.randint(8, 9, (8, 1)), (16, 1)),
    "before a value": (lambda: torch.full((8,), 8), (16,)),
    "other rows": (lambda: torch.randn(3, 8), (3, 8)),
    "no rows": (lambda: torch.zeros(()), ()),
    "by a tensor's number": (lambda: torch.zeros(torch.tensor(8)), (8,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_first_number_of_a_size_is_asked_for(process: Process, name: str) -> None:
    ask_for_rows(torch, process, lambda rows, function, frame: 2 * rows if rows == 8 else rows)
    call, shape = CALLS[name]
    assert tuple(call().shape) == shape


def test_a_wrong_call_fails_as_it_does_without_us(process: Process) -> None:
    ask_for_rows(torch, process, lambda rows, function, frame: rows)
    with pytest.raises(TypeError, match="randn"):
        torch.randn("8")


MAKERS = {
    "rand": lambda: torch.rand(2),
    "randn": lambda: torch.randn(2),
    "randint": lambda: torch.randint(3, (2,)),
    "zeros": lambda: torch.zeros(2),
    "ones": lambda: torch.ones(2),
    "empty": lambda: torch.empty(2),
    "full": lambda: torch.full((2,), 1.0),
}


@pytest.fixture
def asked_at_import(process: Process) -> Iterator[None]:
    """As in a training: nobody has asked torch for its lists of functions before."""
    from torch.utils._device import _device_constructors

    _device_constructors.cache_clear()
    ask_for_rows(torch, process, lambda rows, function, frame: rows)
    yield
    _device_constructors.cache_clear()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_go_to_the_default_device(asked_at_import: None, name: str) -> None:
    make = MAKERS[name]
    with torch.device("meta"):
        assert make().is_meta
    torch.set_default_device("meta")
    try:
        assert make().is_meta
    finally:
        torch.set_default_device(None)
    assert make().is_cpu


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.size(0)
        state = torch.zeros(n, 4) + torch.ones(n, 4) + torch.full((n, 4), 2.0)
        drawn = torch.rand(n, 4) + torch.randn(n, 4) + torch.randint(3, (n, 4))
        return state + 0 * (drawn + torch.empty(n, 4).zero_())


def test_a_model_that_calls_them_can_be_scripted(process: Process) -> None:
    ask_for_rows(torch, process, lambda rows, function, frame: rows)
    scripted = torch.jit.script(Scripted())
    process.undo()
    assert scripted(torch.ones(5, 1)).tolist() == [[3.0] * 4] * 5


def test_nothing_is_left_of_them_in_the_lists_of_torch(process: Process) -> None:
    before = dict(torch.jit._builtins._get_builtin_table())
    ask_for_rows(torch, process, lambda rows, function, frame: rows)
    process.undo()
    assert torch.jit._builtins._get_builtin_table() == before


def test_they_can_be_pickled(process: Process) -> None:
    ask_for_rows(torch, process, lambda rows, function, frame: rows)
    pickled = pickle.dumps([getattr(torch, name) for name in FUNCTIONS])
    process.undo()
    assert pickle.loads(pickled) == [getattr(torch, name) for name in FUNCTIONS]


@pytest.mark.parametrize("name", ["_find_builtin", "_get_builtin_table"])
def test_a_torch_that_cannot_be_told_of_them_is_left_alone(
    process: Process, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = [getattr(torch, each) for each in FUNCTIONS]
    monkeypatch.delattr(torch.jit._builtins, name)
    watch_own_batches(torch, process, lambda **event: None)
    assert [getattr(torch, each) for each in FUNCTIONS] == before


def test_a_compiled_function_is_not_broken_by_it(process: Process) -> None:
    def ask(rows: int, function: str, frame: Any) -> int:
        return 2 * rows if is_users_own(torch, frame) else rows

    ask_for_rows(torch, process, ask)

    @torch.compile(backend="eager", fullgraph=True)
    def add(x: Any) -> Any:
        return x + torch.ones(8)

    assert torch.equal(add(torch.arange(8.0)), torch.arange(1.0, 9.0))
