"""The FLOPs of a step are those that a person counts by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType

import pytest
from running import SCRIPTS, Command, RunCache


def by_hand() -> ModuleType:
    """The script with the hand-made counts."""
    spec = importlib.util.spec_from_file_location("by_hand", SCRIPTS / "flops_by_hand.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mlp_step_flops(batch: int = 256) -> int:
    """compiled_model.py: 256 -> 512 -> 10; the batch itself needs no gradient."""
    hand = by_hand()
    first = hand.linear(batch, 256, 512) * (hand.FORWARD + hand.WEIGHT_GRADIENT)
    flops: int = first + hand.linear(batch, 512, 10) * hand.ALL
    return flops


COUNTED = {
    "resnet": (Command(("resnet.py",)), lambda: by_hand().resnet_step_flops()),
    "gpt": (Command(("gpt.py",)), lambda: by_hand().gpt_step_flops()),
}
COMPILED = {
    style: Command(("compiled_model.py", "--style", style))
    for style in ("module", "method", "sequential")
}


@pytest.mark.parametrize(("command", "expected"), COUNTED.values(), ids=list(COUNTED))
def test_flops_are_those_counted_by_hand(
    runs: RunCache, command: Command, expected: Callable[[], int]
) -> None:
    flops = runs(command).run["flops"]
    assert flops["per_step"] == pytest.approx(expected(), rel=0.02)
    assert flops["per_s"] > 0
    assert flops["ceiling_per_s"] is None, "a CPU is not in the chip table"
    assert flops["mfu"] is None


@pytest.mark.parametrize("command", COMPILED.values(), ids=list(COMPILED))
def test_a_compiled_model_has_the_flops_of_the_plain_one(runs: RunCache, command: Command) -> None:
    assert runs(command).run["flops"]["per_step"] == mlp_step_flops()


@pytest.mark.parametrize("command", [Command(("compiled_model.py", "--style", "step"))])
def test_flops_that_cannot_be_counted_are_null_and_say_why(
    runs: RunCache, command: Command
) -> None:
    run = runs(command).run
    assert run["flops"]["per_step"] is None
    assert any(note.startswith("FLOPs are unknown") for note in run["notes"])
