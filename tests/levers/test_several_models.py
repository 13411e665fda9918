"""Levers change every model of a training, and so do their edits: at each call, by each name."""

from __future__ import annotations

from pathlib import Path

import pytest
from lever_runs import BY_NAME, NO_AMX, is_whole, run_with, seen_in_trial

from hotlap.levers.common.edits import apply_edits, describe
from hotlap.levers.common.workload import Workload

ENCODER_AND_DECODER = """
import json
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return x + torch.relu(self.conv(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x).chunk(2, 1)


class Decoder(Encoder):
    def forward(self, a, b):
        return self.blocks(torch.cat([a, b], 1))


encoder, decoder = Encoder(), Decoder()
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
losses = []
for _ in range(3):
    x = torch.randn(4, 4, 8, 8)
    a, b = encoder(x)
    result = decoder(a, b)
    loss = (result - x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"losses": losses}))
"""
ON_ONE_LINE = ENCODER_AND_DECODER.replace(
    "    a, b = encoder(x)\n    result = decoder(a, b)\n", "    result = decoder(*encoder(x))\n"
)
TAKING_TURNS = ENCODER_AND_DECODER.replace(
    "    result = decoder(a, b)\n",
    "    a.sum().backward()\n    result = decoder(a.detach(), b.detach())\n",
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "train.py"
    path.write_text(ENCODER_AND_DECODER)
    return path


@pytest.fixture(scope="module")
def workload(script: Path) -> Workload:
    return seen_in_trial(script.parent / "seen", script)


EDITS = {
    "compile": ('encoder.compile(mode="default")\n', 'decoder.compile(mode="default")\n'),
    "checkpointing": ("_checkpointing(encoder, ", "_checkpointing(decoder, "),
    "channels_last": (
        *(f"{name}.to(memory_format=torch.channels_last)\n" for name in ("encoder", "decoder")),
        "encoder(x.to(memory_format=torch.channels_last))",
        "decoder(a.to(memory_format=torch.channels_last), b)",
    ),
    "pure_bf16": ("in_bf16(encoder)\n", "in_bf16(decoder)\n"),
    "bf16": ("        a, b = encoder(x)\n        result = decoder(a, b)\n",),
}


@pytest.mark.parametrize("lever", EDITS)
def test_an_edit_is_about_every_model(script: Path, workload: Workload, lever: str) -> None:
    edits = BY_NAME[lever].edit(BY_NAME[lever].values(workload)[0], workload)
    new = apply_edits(edits)[str(script)]
    assert is_whole(edits)
    assert all(part in new for part in EDITS[lever])


@pytest.mark.parametrize("lever", ["pure_bf16", "checkpointing"])
def test_the_edit_of_two_models_does_what_the_lever_does(
    tmp_path: Path, script: Path, workload: Workload, lever: str
) -> None:
    value = BY_NAME[lever].values(workload)[0]
    by_hand = tmp_path / "edited.py"
    by_hand.write_text(apply_edits(BY_NAME[lever].edit(value, workload))[str(script)])
    plain, _ = run_with(tmp_path / "plain", script, **NO_AMX)
    with_lever, _ = run_with(tmp_path / "lever", script, **NO_AMX, **{lever: value})
    with_edit, _ = run_with(tmp_path / "edit", by_hand, **NO_AMX)
    assert with_edit.truth["losses"] == with_lever.truth["losses"]
    assert (with_edit.truth == plain.truth) == (lever == "checkpointing")


def test_models_of_one_line_are_told_in_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_ONE_LINE)
    seen = seen_in_trial(tmp_path / "seen", script)
    for lever in ("compile", "checkpointing", "channels_last", "pure_bf16"):
        edits = BY_NAME[lever].edit(BY_NAME[lever].values(seen)[0], seen)
        words = [describe(edit) for edit in edits if edit.kind == "told"]
        assert not is_whole(edits)
        assert any("for the Encoder of this line" in one for one in words)
        assert any("for the Decoder of this line" in one for one in words)


def test_models_with_backwards_of_their_own_are_told_in_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TAKING_TURNS)
    seen = seen_in_trial(tmp_path / "seen", script)
    (edit,) = BY_NAME["bf16"].edit("autocast", seen)
    call = script.read_text().splitlines().index("    a, b = encoder(x)") + 1
    assert not is_whole((edit,))
    assert describe(edit) == (
        f'{script}:{call}  with torch.autocast("cpu", dtype=torch.bfloat16): around each call of a '
        f"model, here and in line {call + 2}, up to its loss; backward stays outside"
    )
