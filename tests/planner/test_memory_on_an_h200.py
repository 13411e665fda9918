"""What a plan says of GPT-2's memory under autocast is what one H200 needed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import training_memory
from hotlap.planner.trace import Request
from hotlap.planner.tracing import traced
from hotlap.planner.training import Training

DATA = Path(__file__).parents[2] / "benchmarks" / "planner" / "data" / "h200-2026-11-15.json"
MEASURED = json.loads(DATA.read_text())["gpt2_124m"]
CASES = {
    "b0-adamw-bf16": ("adamw", 8, False),
    "b0-sgd-bf16-ckpt": ("sgd", 8, True),
    "b1-sgd-bf16-compile": ("sgd", 32, False),
    "b1-adamw-bf16-ckpt": ("adamw", 32, True),
}


@pytest.fixture(scope="module")
def gpt2() -> Model:
    return traced(Request("hotlap.models.gpt:gpt2_124m", {}, 1024, None, 3, "bf16", False, True))


@pytest.mark.parametrize("name", CASES)
def test_allocated_bytes_are_those_of_the_gpu(gpt2: Model, name: str) -> None:
    optimizer, batch, is_checkpointed = CASES[name]
    training = Training(batch, batch, "bf16", optimizer, is_compiled="compile" in name)
    layout = Layout(recompute="full" if is_checkpointed else "none")
    memory = training_memory(gpt2, training, layout)
    handed_out = memory.total - memory.context - memory.fragmentation
    assert handed_out == pytest.approx(MEASURED[name]["allocated"], rel=0.02)


def test_a_loss_under_autocast_needs_what_a_gpu_makes_for_it(gpt2: Model) -> None:
    n_logits = 1024 * 50257
    # The output and its logarithms in bf16, a copy of these in fp32; its gradient in fp32.
    assert gpt2.logits_evaluated_bytes == pytest.approx(n_logits * (2 + 2 + 4), rel=1e-4)
    assert gpt2.logits_bytes == pytest.approx(n_logits * (2 + 2 + 4 + 4), rel=1e-4)
