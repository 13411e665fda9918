"""What every model of MODELS keeps to, and what every kind of model keeps to at a small size."""

from __future__ import annotations

import pytest
import torch
from small_models import SMALL, example_input
from torch import Tensor, nn

from hotlap.models.build import MODELS, build_model
from hotlap.models.gpt import GPT
from hotlap.models.settings import ModelSettings
from hotlap.models.staged import StagedModel

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vit-tiny": 5_717_416,
    "vit-small": 22_050_664,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1558m": 1_557_611_200,
    # Of two layers of width 64: 12 w² + 13 w a layer, 2 w for the last norm, and the embeddings.
    "gpt": 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + (50_257 + 1024) * 64,
}
"""As published with the models."""


def on_meta(name: str) -> StagedModel:
    """A model of MODELS, without memory."""
    sizes = {"n_layers": 2, "n_heads": 4, "width": 64} if name == "gpt" else {}
    with torch.device("meta"):
        model = build_model(ModelSettings(name=name, **sizes))
    assert isinstance(model, StagedModel)
    return model


def input_on_meta(model: nn.Module) -> Tensor:
    if isinstance(model, GPT):
        return torch.zeros(2, 8, dtype=torch.long, device="meta")
    return torch.zeros(2, 3, 224, 224, device="meta")


@pytest.mark.parametrize("name", MODELS)
def test_the_parameters_are_as_many_as_published(name: str) -> None:
    assert sum(one.numel() for one in on_meta(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
def test_it_runs_forward_and_backward_at_its_full_size(name: str) -> None:
    model = on_meta(name)
    outputs = model(input_on_meta(model))
    assert outputs.shape == ((2, 8, 50257) if isinstance(model, GPT) else (2, 1000))
    outputs.sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.shape == parameter.shape, parameter_name


@pytest.mark.parametrize("name", MODELS)
def test_its_blocks_hold_most_of_it_and_none_twice(name: str) -> None:
    model = on_meta(name)
    blocks = model.blocks()
    assert len({id(block) for block in blocks}) == len(blocks) >= 2
    inside = {id(one) for block in blocks for one in block.parameters()}
    of_blocks = [sum(one.numel() for one in block.parameters()) for block in blocks]
    assert sum(of_blocks) == sum(one.numel() for one in model.parameters() if id(one) in inside)
    ends = (*model.STEM, *model.HEAD)
    outside = {n for n, one in model.named_parameters() if id(one) not in inside}
    assert {n.partition(".")[0] for n in outside} <= set(ends)


@pytest.mark.parametrize("name", MODELS)
def test_its_plan_for_tensor_parallelism_names_all_linear_layers_of_a_block(name: str) -> None:
    model = on_meta(name)
    for block in model.blocks():
        linear = {path for path, part in block.named_modules() if isinstance(part, nn.Linear)}
        assert set(model.TENSOR_PARALLEL) == linear
    assert set(model.TENSOR_PARALLEL.values()) <= {"columns", "rows"}


@pytest.mark.parametrize("kind", SMALL)
def test_one_step_along_the_gradient_lowers_the_loss(kind: str) -> None:
    model = SMALL[kind]()
    inputs = example_input(model)
    n_outputs = 50 if isinstance(model, GPT) else 10
    targets = torch.randint(n_outputs, inputs.shape if isinstance(model, GPT) else (2,))

    def loss() -> Tensor:
        torch.manual_seed(1)  # the same dropout
        return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    before = loss()
    before.backward()
    norm = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
    assert norm > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-2 * parameter.grad / norm
        assert loss() < before


@pytest.mark.parametrize("kind", SMALL)
def test_initialise_draws_everything_that_to_empty_left_undefined(kind: str) -> None:
    with torch.device("meta"):
        model = SMALL[kind]()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 7)
    model.initialise()
    fresh = SMALL[kind]().state_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name
        if tensor.dim() > 1 and tensor.numel() >= 1000:
            assert tensor.std().item() == pytest.approx(fresh[name].std().item(), rel=0.15), name
        elif fresh[name].unique().numel() == 1:
            assert torch.equal(tensor, fresh[name]), name
