"""What a trace says is alive at the worst moment is what torch's allocator hands out then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from hotlap.models.checkpointing import checkpoint_blocks
from hotlap.models.gpt import GPT
from hotlap.models.resnet import resnet18
from hotlap.planner.layers import Model, Moment
from hotlap.planner.layout import Layout
from hotlap.planner.memory import training_memory
from hotlap.planner.trace import Request, trace
from hotlap.planner.training import Training

SIZES = {"n_layers": 4, "n_heads": 4, "width": 128, "vocab_size": 4000, "context": 128}
BATCH = 6


def gpt() -> Request:
    return Request("hotlap.models.gpt:GPT", SIZES, 128, None, 3, "", False, True)


def resnet() -> Request:
    return Request("hotlap.models.resnet:resnet18", {}, None, 64, 3, "", False, False)


def handed_out(model: nn.Module, inputs: Callable[[], Tensor], folder: Path) -> int:
    """The most bytes of a forward, a loss and a backward, as torch's allocator tells them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        output = model(inputs())
        flat = output.flatten(0, -2)
        F.cross_entropy(flat, torch.zeros(flat.shape[0], dtype=torch.long)).backward()
    path = folder / "trace.json"
    watched.export_chrome_trace(str(path))
    told = [
        e["args"] for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "[memory]"
    ]
    now = most = 0
    for one in told:
        now += one["Bytes"]
        most = max(most, now)
    return most


def worst(moments: tuple[Moment, ...]) -> float:
    return max(one.per_sample_bytes * BATCH + one.fixed_bytes for one in moments)


def images() -> Tensor:
    return torch.randn(BATCH, 3, 64, 64)


def tokens() -> Tensor:
    return torch.randint(0, 4000, (BATCH, 128))


@pytest.mark.parametrize(
    ("asked", "make", "inputs"),
    [(gpt(), lambda: GPT(**SIZES), tokens), (resnet(), resnet18, images)],
    ids=["gpt", "resnet18"],
)
def test_the_worst_moment_is_that_of_a_real_step(
    asked: Request, make: Callable[[], nn.Module], inputs: Callable[[], Tensor], tmp_path: Path
) -> None:
    model = trace(asked)
    real = make()
    assert worst(model.moments) == pytest.approx(handed_out(real, inputs, tmp_path), rel=0.04)
    again = make()
    checkpoint_blocks(again)
    measured = handed_out(again, inputs, tmp_path)
    assert worst(model.moments_recomputed) == pytest.approx(measured, rel=0.04)


@pytest.fixture(scope="module")
def traced() -> Model:
    return trace(gpt())


def test_gradients_that_stay_meet_all_activations(traced: Model) -> None:
    once = training_memory(traced, Training(BATCH, BATCH, "fp32", "adamw"), Layout())
    summed = training_memory(traced, Training(2 * BATCH, BATCH, "fp32", "adamw"), Layout())
    assert summed.gradients == 4 * traced.n_params
    assert once.gradients < summed.gradients
    assert once.total < summed.total


def test_an_update_is_the_worst_moment_of_a_small_batch() -> None:
    sizes = {**SIZES, "width": 512, "vocab_size": 100, "context": 4}
    asked = Request("hotlap.models.gpt:GPT", sizes, 4, None, 3, "", False, True)
    model = trace(asked)
    memory = training_memory(model, Training(1, 1, "fp32", "adamw"), Layout())
    # Weights, gradients, two states, and one number of each weight for a moment.
    held = memory.states + memory.unsharded
    assert held == pytest.approx(20 * model.n_params)
    assert memory.activations == 0
