"""Checkpointed blocks train as they would without, and run their forward twice."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from small_models import SMALL, example_input, loss_of
from torch import Tensor, nn

from hotlap.errors import UsageError
from hotlap.models.checkpointing import checkpoint_blocks


class Residual(nn.Module):
    """A block of a stranger's model, with everything that could go wrong twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + scale * self.dropout(self.norm(self.linear(x)).relu())


class Stranger(nn.Module):
    """A model without `blocks()`, with a short and a long list of blocks and one of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        self.few = nn.Sequential(Residual(8), Residual(8))
        self.many = nn.ModuleList(Residual(8) for _ in range(3))
        self.others = nn.ModuleList((nn.Sequential(nn.Linear(8, 8)), Residual(8)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.few(self.layers(x))
        for block in self.many:
            x = block(x, scale=0.5)
        return self.others[1](self.others[0](x))


def pair(kind: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """Twice the same model, and an input."""
    model = Stranger() if kind == "stranger" else SMALL[kind]()
    inputs = torch.randn(4, 8) if kind == "stranger" else example_input(model)
    return model, copy.deepcopy(model), inputs


def train_twice(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The losses of two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(1)  # the same dropout
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(loss_of(model(inputs)))
        losses[-1].backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", [*SMALL, "stranger"])
def test_losses_gradients_and_statistics_are_those_without(kind: str, every: int) -> None:
    model, plain, inputs = pair(kind)
    checkpoint_blocks(model, every)
    assert all(map(torch.equal, train_twice(model, inputs), train_twice(plain, inputs)))
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name
    ours, theirs = model.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name


def forwards(model: nn.Module, parts: list[nn.Module], inputs: Tensor) -> list[int]:
    """How often each part ran in one step."""
    seen: Counter[int] = Counter()
    for i, part in enumerate(parts):
        part.register_forward_pre_hook(lambda *_, i=i: seen.update([i]))
    loss_of(model(inputs)).backward()
    return [seen[i] for i in range(len(parts))]


@pytest.mark.parametrize(("every", "expected"), [(1, [2, 2, 2, 2]), (2, [2, 1, 2, 1])])
def test_every_nth_block_runs_again_in_backward(every: int, expected: list[int]) -> None:
    model, _, inputs = pair("gpt")
    assert checkpoint_blocks(model, every) == sum(n == 2 for n in expected)
    attentions = [block.attention for block in model.blocks()]
    assert forwards(model, attentions, inputs) == expected


def test_a_strangers_blocks_are_those_of_the_class_in_its_longest_list() -> None:
    model, _, inputs = pair("stranger")
    assert checkpoint_blocks(model) == 5
    parts = [*model.layers, *(block.linear for block in (*model.few, *model.many))]
    assert forwards(model, parts, inputs) == [1] * 6 + [2] * 5


def test_twice_is_once() -> None:
    model, _, inputs = pair("vit")
    assert checkpoint_blocks(model) == checkpoint_blocks(model) == 4
    assert forwards(model, [model.blocks()[0].mlp], inputs) == [2]


def test_blocks_do_not_run_again_where_there_is_no_backward() -> None:
    model, plain, inputs = pair("resnet of basic blocks")
    checkpoint_blocks(model)
    with torch.no_grad():
        assert torch.equal(model.eval()(inputs), plain.eval()(inputs))


def test_a_copy_runs_its_own_weights() -> None:
    model, _, inputs = pair("vit")
    checkpoint_blocks(model)
    twin = copy.deepcopy(model).eval()
    before = twin(inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(twin(inputs), before)
    assert before.any()


def test_stages_of_a_checkpointed_model_are_checkpointed() -> None:
    model, _, inputs = pair("vit")
    checkpoint_blocks(model)
    stage = model.stage(0, 2, True, False)
    assert forwards(stage, [block.mlp for block in stage.blocks()], inputs) == [2, 2]


@pytest.mark.parametrize("kind", ["resnet of basic blocks", "vit"])
def test_a_compiled_model_can_be_checkpointed(kind: str) -> None:
    model, plain, inputs = pair(kind)
    checkpoint_blocks(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for step in (compiled, plain):
        loss_of(step(inputs)).backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
    ours, theirs = model.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], msg=name)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        nn.Sequential(Residual(2), nn.Sequential(nn.Linear(2, 2))),
    ],
    ids=["a layer", "layers", "two different blocks"],
)
def test_a_model_without_repeated_blocks_is_refused(model: nn.Module) -> None:
    with pytest.raises(UsageError, match="has no blocks to checkpoint: neither a method blocks"):
        checkpoint_blocks(model)


def test_every_has_to_be_at_least_1() -> None:
    with pytest.raises(UsageError, match="every is 0; it has to be at least 1"):
        checkpoint_blocks(SMALL["vit"](), every=0)
