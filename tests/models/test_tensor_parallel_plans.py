"""The plans for tensor parallelism: parts of a block that are cut by them add up to the block."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import SMALL
from torch import nn

WITH_A_PLAN = [kind for kind in SMALL if SMALL[kind]().TENSOR_PARALLEL]


def part_of(block: nn.Module, plan: dict[str, str], rank: int, n_ranks: int) -> nn.Module:
    """What one rank holds: even cuts of outputs or inputs, as `torch.chunk` makes them."""
    part = copy.deepcopy(block)
    for path, cut in plan.items():
        linear = part.get_submodule(path)
        dim = 0 if cut == "columns" else 1
        linear.weight = nn.Parameter(linear.weight.chunk(n_ranks, dim)[rank])
        if cut == "columns":
            linear.bias = nn.Parameter(linear.bias.chunk(n_ranks)[rank])
        elif rank > 0:  # outputs are summed: the bias counts once
            linear.bias = None
    return part


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("kind", WITH_A_PLAN)
def test_the_parts_that_ranks_hold_add_up_to_the_block(kind: str, n_ranks: int) -> None:
    model = SMALL[kind]().double().eval()
    block = model.blocks()[1]
    for name, parameter in block.named_parameters():
        nn.init.normal_(parameter, std=0.5 if name.endswith("weight") else 1.0)
    parts = [part_of(block, model.TENSOR_PARALLEL, rank, n_ranks) for rank in range(n_ranks)]
    hidden = torch.randn(2, 7, 32, dtype=torch.double)
    for layer in ("attention", "mlp"):
        whole = getattr(block, layer)(hidden)
        summed = sum(getattr(part, layer)(hidden) for part in parts)
        torch.testing.assert_close(summed, whole)


def test_vit_and_gpt_have_a_plan() -> None:
    assert WITH_A_PLAN == ["vit", "gpt", "tied gpt"]
    assert all(hasattr(SMALL[kind](), "n_heads") for kind in WITH_A_PLAN)
