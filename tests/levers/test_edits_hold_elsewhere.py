"""Edits of models hold at other calls too, in copies, for checkpoints, and inside functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from lever_runs import BY_NAME, NO_AMX, is_whole, run_with, seen_in_trial

from hotlap.levers.common.edits import apply_edits

SCRIPT = """
import copy
import json
import torch
from torch import nn


class Net(nn.Sequential):
    pass


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(network, x):
    with torch.no_grad():
        return network(x).square().mean().item()


net = Net(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
model = net
optimizer = make_optimizer(model)
losses = []
for _ in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses += [loss.item(), evaluate(model, torch.ones(4, 8))]
torch.save(net, __file__ + ".pt")
keys = list(torch.load(__file__ + ".pt", weights_only=False).state_dict())
from torch._dynamo.utils import counters
n_graphs = counters["stats"]["unique_graphs"]
print(json.dumps({"losses": losses, "keys": keys, "n_graphs": n_graphs}))
"""
COPIED = """
copied = copy.deepcopy(net)
with torch.no_grad():
    for one in copied.parameters():
        one.zero_()
assert evaluate(copied, torch.ones(4, 8)) == 0
"""
FORWARD = """
    def forward(self, x):
        return super().forward(x)
"""


@pytest.mark.parametrize("lever", ["compile", "pure_bf16"])
@pytest.mark.parametrize("has_own_forward", [True, False], ids=["own forward", "torch's forward"])
def test_the_edit_does_at_every_call_what_the_lever_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lever: str, has_own_forward: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    script, by_hand = tmp_path / "train.py", tmp_path / "edited.py"
    script.write_text(SCRIPT.replace("    pass\n", FORWARD if has_own_forward else "    pass\n"))
    seen = seen_in_trial(tmp_path / "seen", script)
    edits = BY_NAME[lever].edit(value := BY_NAME[lever].values(seen)[0], seen)
    assert is_whole(edits)
    by_hand.write_text(apply_edits(edits)[str(script)] + COPIED)
    plain, _ = run_with(tmp_path / "plain", script, **NO_AMX)
    copying = tmp_path / "copying.py"  # as for the best weights so far
    copying.write_text(script.read_text() + COPIED)
    with_lever, _ = run_with(tmp_path / "lever", copying, **NO_AMX, **{lever: value})
    with_edit, _ = run_with(tmp_path / "edit", by_hand, **NO_AMX)
    assert with_edit.truth["losses"] == with_lever.truth["losses"]
    assert with_edit.truth["keys"] == plain.truth["keys"]
    assert (with_edit.truth["n_graphs"] > 0) == (lever == "compile")
    assert (with_edit.truth["losses"] != plain.truth["losses"]) or lever == "compile"
