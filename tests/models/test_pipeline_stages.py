"""Models cut into pipeline stages: together they are the model, each holds its part alone."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from small_models import SMALL, example_input, loss_of
from torch import Tensor

from hotlap.errors import UsageError
from hotlap.models.gpt import GPT
from hotlap.models.staged import StagedModel

CUTTABLE = [kind for kind in SMALL if kind != "tied gpt"]


def cut(model: StagedModel, *bounds: int) -> list[StagedModel]:
    """Stages that begin and end with these blocks."""
    ends = [0, *bounds, len(model.blocks())]
    last = len(ends) - 2
    return [model.stage(a, b, i == 0, i == last) for i, (a, b) in enumerate(pairwise(ends))]


def chain(stages: list[StagedModel], inputs: Tensor) -> Tensor:
    for stage in stages:
        inputs = stage(inputs)
    return inputs


@pytest.mark.parametrize("bounds", [(1,), (3,), (1, 2), (0, 2), (2, 2)])
@pytest.mark.parametrize("kind", CUTTABLE)
def test_chained_stages_give_the_output_and_gradients_of_the_model(
    kind: str, bounds: tuple[int, ...]
) -> None:
    model = SMALL[kind]()
    whole = copy.deepcopy(model)
    inputs = example_input(model)
    torch.manual_seed(1)  # the same dropout
    expected = whole(inputs)
    torch.manual_seed(1)
    outputs = chain(cut(model, *bounds), inputs)
    assert torch.equal(outputs, expected)
    loss_of(outputs).backward()
    loss_of(expected).backward()
    for (name, ours), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name
    assert all(map(torch.equal, model.buffers(), whole.buffers()))


@pytest.mark.parametrize("kind", CUTTABLE)
def test_the_state_dicts_of_the_stages_make_up_that_of_the_model(kind: str) -> None:
    model = SMALL[kind]()
    names = list(model.state_dict())
    parts = [list(stage.state_dict()) for stage in cut(model, 1, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert list(model.state_dict()) == names, "the model itself was changed"


@pytest.mark.parametrize("kind", CUTTABLE)
def test_stem_and_head_are_in_the_first_and_the_last_stage_alone(kind: str) -> None:
    model = SMALL[kind]()
    first, middle, last = cut(model, 1, 3)
    for part in model.STEM:
        assert hasattr(first, part)
        assert not hasattr(middle, part)
        assert not hasattr(last, part)
    for part in model.HEAD:
        assert not hasattr(first, part)
        assert not hasattr(middle, part)
        assert hasattr(last, part)
    assert [len(stage.blocks()) for stage in (first, middle)] == [1, 2]


@pytest.mark.parametrize("kind", CUTTABLE)
def test_a_stage_cut_on_the_meta_device_is_drawn_alone(kind: str) -> None:
    with torch.device("meta"):
        model = SMALL[kind]()
    for stage in cut(model, 2):
        stage.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in stage.parameters():
                parameter.fill_(torch.nan)
        stage.initialise()
        assert all(one.isfinite().all() for one in stage.parameters())
    assert all(one.is_meta for one in model.parameters())


def test_weights_of_a_stage_are_drawn_for_the_depth_of_the_whole_model() -> None:
    model = GPT(n_layers=8, n_heads=2, width=128, vocab_size=50, tied=False)
    stage = model.stage(2, 4, False, False)
    stage.initialise()
    (block, _) = stage.blocks()
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


def test_a_tied_gpt_is_not_cut() -> None:
    model = SMALL["tied gpt"]()
    with pytest.raises(UsageError, match=r"tied is true; .* needs tied = false"):
        model.stage(0, 2, True, False)
    with pytest.raises(UsageError, match="tied is true"):
        model.stage(2, 3, False, True)
    whole = model.eval().stage(0, 3, True, True)
    inputs = example_input(model)
    assert torch.equal(whole(inputs), model(inputs))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, True, True), "blocks 0 up to 5 was asked for; ViT has blocks 0 up to 4"),
        ((-1, 2, False, False), "ViT has blocks 0 up to 4"),
        ((3, 2, False, False), "ViT has blocks 0 up to 4"),
        ((1, 2, True, False), "the first one; that has to begin with block 0"),
        ((1, 3, False, True), "the last one; that has to go up to block 4"),
    ],
)
def test_a_cut_that_the_model_does_not_have_is_refused(
    arguments: tuple[int, int, bool, bool], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        SMALL["vit"]().stage(*arguments)
